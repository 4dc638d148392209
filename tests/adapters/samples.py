"""Rows, networks and data sets for several tests."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from advisor_logging.recorder import Recorder
from advisor_logging.table import MetricTable
from advisor_pytorch.facts.observations import Observations


class RowChunk:
    """A chunk that is ready."""

    def __init__(self, table: MetricTable, is_windowed: bool = True) -> None:
        self.table, self.is_windowed = table, is_windowed

    def __len__(self) -> int:
        return len(self.table)

    def is_ready(self) -> bool:
        return True

    def tables(self) -> list[MetricTable]:
        return [self.table]


def steps(first: int, count: int) -> RowChunk:
    at = list(range(first, first + count))
    return RowChunk(
        MetricTable(at, [1_700_000_000_000 + s for s in at], {f"m{i}": [float(s) for s in at] for i in range(8)}), True
    )


class Digits(TensorDataset):
    classes = tuple("0123456789")

    def __init__(self, n: int) -> None:
        super().__init__(torch.randn(n, 4), torch.randint(10, (n,)))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 10))


class Seen:
    """Receives observations, as a logger does."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int | None = None) -> None:
        self.tags: dict[str, str] = {}
        self.warnings: list[str] = []
        self.by = Observations(model, [optimizer], self.tags.update, lambda key, text: self.warnings.append(text), steps)

    def json(self, tag: str) -> Any:
        return json.loads(self.tags[tag])


class RootMeanSquareNorm(nn.Module):
    """A normalisation layer that is written out in elementary operations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def kill_shipper(recorder: Recorder | None) -> None:
    """Kill the shipper of a closed recorder; an open one would start another."""
    assert recorder is not None
    assert recorder._shipper is not None
    recorder._shipper._process.kill()
    recorder._shipper._process.wait()
