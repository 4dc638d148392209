"""Interfaces of the objects to which `StepCapture` passes its observations."""

from __future__ import annotations

from typing import Protocol

import torch

from advisor_pytorch.steps.device import Value
from advisor_pytorch.steps.rows import PendingChunk


class CaptureOwner(Protocol):
    """Receives the data that `StepCapture` collects."""

    def hand_over(self, chunk: PendingChunk) -> None:
        """Process values that may still be in transfer from the device."""

    def on_fact(self, tag: str, value: str) -> None:
        """Process a fact observed during training, given as a tag. A later value of the same tag replaces an earlier value."""

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        """React to the replacement of optimizer number k by `optimizer`."""

    def warn(self, key: str, message: str) -> None:
        """Log a one-line warning, once per key."""


class StepWatch(Protocol):
    """Looks for the first non-finite value of a training. The methods must not raise errors."""

    def on_loss(self, loss: Value) -> None:
        """Process a logged loss."""

    def on_clip(self, norm: torch.Tensor | None) -> None:
        """Process the norm of the gradients that are about to be clipped."""

    def on_step(self, step: int, norm: torch.Tensor | None, parts: torch.Tensor | None) -> None:
        """Process the gradient norm with which step number `step` begins, and the norms of the single gradients."""

    def on_skip(self) -> None:
        """React to a step that a gradient scaler skips."""
