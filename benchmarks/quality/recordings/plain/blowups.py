"""A deep perceptron on digits whose loss takes the logarithm of a softmax.

At high rates a probability becomes zero and the training loss ends as NaN; the accuracy stays finite, at chance.
"""

from __future__ import annotations

import math

import mlflow
import numpy as np
import torch

from recordings.plain.common import Split, batches, digits, evaluate, log_uniform, mean, mlp, uniform

TRIALS, EPOCHS = 16, 15


def not_a_number() -> dict[str, str]:
    random = np.random.default_rng(11)
    split = digits(600)
    truth = {}
    for number in range(TRIALS):
        params = {"lr": log_uniform(random, 0.003, 30.0), "momentum": uniform(random, 0.5, 0.95)}
        with mlflow.start_run() as run:
            mlflow.log_params(params)
            truth[run.info.run_id] = train(split, params, number)
    return truth


def train(split: Split, params: dict[str, float], seed: int) -> str:
    """Train and return the status."""
    torch.manual_seed(seed)
    model = mlp(64, 64, 64, 64, 10)
    optimizer = torch.optim.SGD(model.parameters(), params["lr"], momentum=params["momentum"])
    last = math.nan
    for epoch in range(EPOCHS):
        losses = []
        for batch in batches(len(split.x), 32):
            chances = model(split.x[batch]).softmax(1)
            loss = -chances[torch.arange(len(batch)), split.y[batch]].log().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        last = mean(losses)
        mlflow.log_metrics({"train_loss": last, "val_accuracy": evaluate(model, split)[1]}, step=epoch)
    return "complete" if math.isfinite(last) else "diverged"
