"""Fine-tunes a perceptron, pre-trained on the digits 0 to 4, to the digits 5 to 9 with few evaluations.

With few examples, some of them mislabelled, long fine-tuning overfits; with all examples and few epochs, it does not.
"""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache

import mlflow
import numpy as np
import torch
from torch import nn

from recordings.plain.common import Split, batches, digits, evaluate, log_uniform, mean, mlp

TRIALS = 20
OLD, NEW = (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)


@lru_cache(maxsize=1)
def pretrained() -> nn.Sequential:
    torch.manual_seed(0)
    split = digits(600, classes=OLD)
    model = mlp(64, 96, 96, 5)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for _ in range(10):
        for batch in batches(len(split.x), 32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(split.x[batch]), split.y[batch]).backward()
            optimizer.step()
    return model


def few_examples() -> dict[str, str]:
    """Make three passes over 20 copies, as augmentation would make them, of 60 examples, a quarter of them mislabelled."""
    random = np.random.default_rng(8)
    split = digits(60, classes=NEW)
    wrong = torch.tensor(random.random(60) < 0.25)
    y = torch.where(wrong, (split.y + torch.tensor(random.integers(1, 5, 60))) % 5, split.y)
    return search(Split(split.x, y, split.x_valid, split.y_valid), random, copies=20, epochs=3, rates=(5e-4, 1e-2))


def enough_examples() -> dict[str, str]:
    return search(digits(500, classes=NEW), np.random.default_rng(9), copies=1, epochs=4, rates=(1e-4, 2e-3))


def search(
    split: Split, random: np.random.Generator, *, copies: int, epochs: int, rates: tuple[float, float]
) -> dict[str, str]:
    for number in range(TRIALS):
        params = {
            "learning_rate": log_uniform(random, *rates),
            "weight_decay": log_uniform(random, 1e-4, 0.1),
            "batch_size": int(random.choice([8, 16])),
        }
        with mlflow.start_run():
            mlflow.log_params({**params, "num_train_epochs": epochs})
            train(split, params, number, copies=copies, epochs=epochs)
    return {}


def train(split: Split, params: dict[str, float | int], seed: int, *, copies: int, epochs: int) -> None:
    torch.manual_seed(seed)
    model = deepcopy(pretrained())
    model[-1] = nn.Linear(96, 5)
    optimizer = torch.optim.AdamW(model.parameters(), params["learning_rate"], weight_decay=params["weight_decay"])
    step, losses = 0, []
    for _ in range(epochs):
        for indices in batches(copies * len(split.x), int(params["batch_size"])):
            batch = indices % len(split.x)
            loss = nn.functional.cross_entropy(model(split.x[batch]), split.y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
            if step % 10 == 0:
                mlflow.log_metric("train_loss", mean(losses), step=step)
                losses.clear()
        eval_loss, accuracy = evaluate(model, split)
        mlflow.log_metrics({"eval_loss": eval_loss, "eval_accuracy": accuracy}, step=step)
