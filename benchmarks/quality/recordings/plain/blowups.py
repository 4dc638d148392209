"""Trains perceptrons on digits with learning rates up to 30, after a warmup that starts at a hundredth of the learning rate.

The shallow network takes the logarithm of a softmax: at high learning rates, a probability becomes zero and the training loss NaN,
while the accuracy stays finite, at chance level. The deep network has a numerically safe loss: at high learning rates, its units
stop responding, and it always predicts the same class.
"""

from __future__ import annotations

import math

import mlflow
import numpy as np
import torch
from torch import Tensor, nn

from recordings.plain.common import Split, batches, digits, evaluate, log_uniform, mean, mlp, uniform

TRIALS, EPOCHS, WARMUP = 16, 15, 8
GUESSING = math.log(10) - 0.05
"""Minimum training loss at which a trial counts as guessing at random."""


def not_a_number() -> dict[str, str]:
    return search(mlp_widths=(64, 64, 10), safe=False)


def collapse() -> dict[str, str]:
    return search(mlp_widths=(64, 64, 64, 64, 10), safe=True)


def search(*, mlp_widths: tuple[int, ...], safe: bool) -> dict[str, str]:
    random = np.random.default_rng(11)
    split = digits(600)
    truth = {}
    for number in range(TRIALS):
        params = {"lr": log_uniform(random, 0.02, 30.0), "momentum": uniform(random, 0.5, 0.95)}
        torch.manual_seed(number)
        with mlflow.start_run() as run:
            mlflow.log_params(params)
            truth[run.info.run_id] = train(mlp(*mlp_widths), split, params, safe=safe)
    return truth


def train(model: nn.Module, split: Split, params: dict[str, float], *, safe: bool) -> str:
    """Train the model and return the status of the trial."""
    optimizer = torch.optim.SGD(model.parameters(), params["lr"], momentum=params["momentum"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, 100 ** (epoch / WARMUP - 1)))
    last = math.nan
    for epoch in range(EPOCHS):
        losses = []
        for batch in batches(len(split.x), 32):
            loss = error(model(split.x[batch]), split.y[batch], safe=safe)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        last = mean(losses)
        mlflow.log_metrics({"train_loss": last, "val_accuracy": evaluate(model, split)[1]}, step=epoch)
    return "complete" if last < GUESSING else "diverged"


def error(scores: Tensor, classes: Tensor, *, safe: bool) -> Tensor:
    if safe:
        return nn.functional.cross_entropy(scores, classes)
    return -scores.softmax(1)[torch.arange(len(classes)), classes].log().mean()
