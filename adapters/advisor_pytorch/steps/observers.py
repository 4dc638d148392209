"""Interfaces of the objects that receive the observations of `StepCapture`."""

from __future__ import annotations

from typing import Protocol

import torch

from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.steps.rows import PendingChunk


class CaptureOwner(Protocol):
    """Receives the data that `StepCapture` collects."""

    def submit_chunk(self, chunk: PendingChunk) -> None: ...

    def on_observed_tag(self, tag: str, value: str) -> None: ...

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None: ...

    def warn(self, key: str, message: str) -> None: ...


class StepWatch(Protocol):
    """Watches a training run for its first non-finite value. Its methods must not raise errors."""

    def on_loss(self, loss: ScalarValue) -> None: ...

    def on_clip(self, norm: torch.Tensor | None) -> None: ...

    def on_step(self, step: int, norm: torch.Tensor | None, parts: torch.Tensor | None) -> None: ...

    def on_skip(self) -> None: ...
