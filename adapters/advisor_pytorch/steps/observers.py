"""The interfaces of the objects that receive what `StepCapture` observes."""

from __future__ import annotations

from typing import Protocol

import torch

from advisor_pytorch.steps.device import Value
from advisor_pytorch.steps.rows import PendingChunk


class CaptureOwner(Protocol):
    """Receives the captured data."""

    def hand_over(self, chunk: PendingChunk) -> None:
        """Receive values that may still be on their way from the device."""

    def on_fact(self, tag: str, value: str) -> None:
        """Receive a fact observed during training, as a tag. A later value replaces an earlier one."""

    def on_optimizer_replaced(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        """Be notified that `optimizer` has replaced optimizer k."""

    def warn(self, key: str, message: str) -> None:
        """Log one line, once per key."""


class StepWatch(Protocol):
    """Looks for the first non-finite value of a training. It must not raise errors."""

    def on_loss(self, loss: Value) -> None:
        """Receive a logged loss."""

    def on_clip(self, norm: torch.Tensor | None) -> None:
        """Receive the norm of gradients that are about to be clipped."""

    def on_step(self, step: int, norm: torch.Tensor | None, parts: torch.Tensor | None) -> None:
        """Receive the gradient norm with which step `step` begins, and the norms of the single gradients."""

    def on_skip(self) -> None:
        """Be notified that a gradient scaler skips a step."""
