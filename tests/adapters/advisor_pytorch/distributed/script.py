"""What the training scripts of this folder have in common; run by `torchrun`, on CPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from advisor_pytorch import TuningLogger

_expected: dict[str, list[float]] = {}


def begin() -> tuple[int, int]:
    """Join the other ranks; gives the rank and the number of ranks."""
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def expect(run: str, norm: float) -> None:
    """Note the gradient norm that the next step of a run must be logged with."""
    _expected.setdefault(run, []).append(norm)


def write_expected() -> None:
    """Leave them to the test."""
    if dist.get_rank() == 0:
        Path("expected.json").write_text(json.dumps(_expected))


def logger(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, **given: object) -> TuningLogger:
    """A logger of the run `name`."""
    known = {"params": {"learning_rate": 0.01}, "objective": "val/error", "experiment": "test", "run_name": name}
    return TuningLogger(model, optimizer, **{**known, **given})  # type: ignore[arg-type]


def norm_of(gradients: Iterable[torch.Tensor]) -> float:
    """The norm of whole gradients."""
    return math.sqrt(sum(g.double().square().sum().item() for g in gradients))
