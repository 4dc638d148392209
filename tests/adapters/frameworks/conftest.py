"""Tiny data sets and a run's numbers, for trainings by frameworks."""

from __future__ import annotations

import logging

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frameworks say little, and what they set in the environment ends with the test."""
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS", "MLFLOW_EXPERIMENT_NAME", "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


@pytest.fixture
def points() -> tuple[torch.Tensor, torch.Tensor]:
    """64 points of two classes."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()
