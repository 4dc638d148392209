"""Code shared by the training scripts of this folder, which `torchrun` runs on CPUs."""

from __future__ import annotations

import gc
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
    """Join the other ranks unless an earlier script did; return the rank and the number of ranks."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def expect(run: str, norm: float) -> None:
    """Record the gradient norm expected for the next step of a run."""
    _expected.setdefault(run, []).append(norm)


def write_expected() -> None:
    """Write the expected norms for the test."""
    if dist.get_rank() == 0:
        Path("expected.json").write_text(json.dumps(_expected))


def end() -> None:
    """Write the expected norms and leave the other ranks."""
    write_expected()
    dist.barrier()
    gc.collect()  # models and process group form reference cycles; end it here, not at the interpreter's exit
    dist.destroy_process_group()


def logger(model: nn.Module, optimizer: torch.optim.Optimizer, name: str, **settings: object) -> TuningLogger:
    """Return a logger of the run `name`."""
    known = {"params": {"learning_rate": 0.01}, "objective": "val/error", "experiment": "test", "run_name": name}
    return TuningLogger(model, optimizer, **{**known, **settings})  # type: ignore[arg-type]


def norm_of(gradients: Iterable[torch.Tensor]) -> float:
    """Return the norm of whole gradients."""
    return math.sqrt(sum(g.double().square().sum().item() for g in gradients))
