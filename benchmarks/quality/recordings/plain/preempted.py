"""Trains a perceptron on digits in runs that are interrupted; a second run with the same parameters continues from the
checkpoint."""

from __future__ import annotations

import contextlib
from typing import Any

import mlflow
import numpy as np
import torch

from recordings.plain.common import Split, digits, evaluate, log_uniform, mlp, train_epoch, uniform

TRIALS, EPOCHS = 10, 20
INTERRUPTED = {1: 6, 3: 12, 4: 9, 6: 4, 8: 15}
"""For each interrupted trial: the epoch after which its process receives a signal."""
ANEW = (6,)
"""Interrupted trials that lose their checkpoint and start again."""
BY_EXCEPTION = (4,)
"""Trials that turn the signal into an exception, so that MLflow marks the run as failed; other interrupted runs end as killed."""


def preempted() -> dict[str, str]:
    random = np.random.default_rng(10)
    split = digits(600)
    truth: dict[str, str] = {}
    for number in range(TRIALS):
        params = {
            "lr": log_uniform(random, 1e-4, 0.03),
            "weight_decay": log_uniform(random, 1e-5, 0.1),
            "dropout": uniform(random, 0.0, 0.5),
        }
        checkpoint: dict[str, Any] = {}
        if number in INTERRUPTED:
            with contextlib.suppress(SystemExit):
                truth[train(split, params, number, checkpoint, last_epoch=INTERRUPTED[number])] = "stopped"
            if number in ANEW:
                checkpoint = {}
        truth[train(split, params, number, checkpoint, last_epoch=None)] = "complete"
    return truth


def train(split: Split, params: dict[str, float], seed: int, checkpoint: dict[str, Any], last_epoch: int | None) -> str:
    """Train from the checkpoint until the end or an interruption, and return the run's id."""
    torch.manual_seed(seed)
    model = mlp(64, 64, 10, dropout=params["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), params["lr"], weight_decay=params["weight_decay"])
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    with mlflow.start_run() as run:
        mlflow.log_params(params)
        for epoch in range(checkpoint.get("epoch", 0), EPOCHS):
            train_loss = train_epoch(model, optimizer, split)
            val_loss, accuracy = evaluate(model, split)
            mlflow.log_metrics({"train_loss": train_loss, "val_loss": val_loss, "val_accuracy": accuracy}, step=epoch)
            checkpoint |= {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            if epoch + 1 == last_epoch:
                if seed in BY_EXCEPTION:
                    raise SystemExit(1)
                mlflow.end_run(status="KILLED")
                break
    return str(run.info.run_id)
