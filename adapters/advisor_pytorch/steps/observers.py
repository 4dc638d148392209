"""Interfaces of the objects that receive the observations of `StepCapture`."""

from __future__ import annotations

from typing import Protocol

import torch

from advisor_pytorch.steps.device import ScalarValue
from advisor_pytorch.steps.rows import PendingChunk


class CaptureOwner(Protocol):
    """Receives the data that `StepCapture` collects."""

    def submit_chunk(self, chunk: PendingChunk) -> None:
        """Process values that may still be on the way from the device to the host."""

    def on_observed_tag(self, tag: str, value: str) -> None:
        """Process a fact about the training: a tag and its value. A later value of a tag replaces its earlier value."""

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        """Called when `optimizer` has replaced optimizer number k."""

    def warn(self, key: str, message: str) -> None:
        """Log a one-line warning, once per key."""


class StepWatch(Protocol):
    """Watches a training run for its first non-finite value. The methods of a step watch must not raise errors."""

    def on_loss(self, loss: ScalarValue) -> None:
        """Process a logged loss."""

    def on_clip(self, norm: torch.Tensor | None) -> None:
        """Check the norm of the gradients that are about to be clipped."""

    def on_step(self, step: int, norm: torch.Tensor | None, parts: torch.Tensor | None) -> None:
        """Check the global gradient norm before step number `step`; `parts` holds the norm of each parameter's gradient."""

    def on_skip(self) -> None:
        """Called when a gradient scaler skips a step."""
