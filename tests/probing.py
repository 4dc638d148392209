"""A small training for the tests of probes, with its state."""

from __future__ import annotations

import random

import numpy as np
import torch
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from torch import nn

from advisor import Report, analyze


class Training:
    """A training whose step draws batch and dropout from PyTorch's generator and records its batches."""

    def __init__(self, learning_rate: float = 0.05) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.x = torch.randn(512, 8)
        self.y = self.x @ torch.randn(8, 1) + 0.1 * torch.randn(512, 1)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.batches: list[int] = []

    def step(self, batch_size: int = 32) -> torch.Tensor:
        chosen = torch.randint(len(self.x), (batch_size,))
        self.batches.append(int(chosen.sum()))
        loss = nn.functional.mse_loss(self.model(self.x[chosen]), self.y[chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss

    def loss(self) -> torch.Tensor:
        self.model.eval()
        with torch.no_grad():
            loss = nn.functional.mse_loss(self.model(self.x), self.y)
        self.model.train()
        return loss

    def goes_on(self, steps: int = 5) -> list[float]:
        """Return the losses of further steps, then a number from each random generator, and the learning rate."""
        losses = [self.step().item() for _ in range(steps)]
        return [*losses, torch.rand(1).item(), random.random(), float(np.random.rand()), self.scheduler.get_last_lr()[0]]


def runs_of(uri: str, experiment: str) -> list[Run]:
    """Return the runs of an experiment in the order of their start."""
    client = MlflowClient(uri)
    stored = client.get_experiment_by_name(experiment)
    assert stored is not None
    return list(client.search_runs([stored.experiment_id], order_by=["attributes.start_time ASC"]))


def analyzed(uri: str, experiment: str) -> Report:
    """Analyze the experiment and check that no rule is broken."""
    report = analyze(experiment, tracking_uri=uri)
    assert [v for v in report.verdicts if v.status == "broken"] == []
    return report
