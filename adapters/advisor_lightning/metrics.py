"""The trainer's new metrics, and the loss of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class FreshMetrics:
    """Finds new values in `trainer.callback_metrics`, which keeps old values of metrics that were not computed since.

    A value is new if its memory address is new; nothing is read from the device.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # references prevent the reuse of their memory

    def mark(self, metrics: Mapping[str, Any]) -> None:
        """Mark the present values as old."""
        self._seen = dict(metrics)

    def take(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new metrics and mark them as old. If a loss was logged by step and epoch, only the latter is returned."""
        new = {name: value for name, value in metrics.items() if not _is_same(value, self._seen.get(name))}
        self.mark(metrics)
        return {name: value for name, value in new.items() if f"{name}_epoch" not in new and not name.endswith("_step")}


def _is_same(value: Any, seen: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(seen, torch.Tensor):
        return value.data_ptr() == seen.data_ptr()
    return value is seen


def step_loss(outputs: Any, micro_batches: int) -> torch.Tensor | None:
    """Return the loss from the output of `training_step`, or None. Lightning divides it by the micro-batches of a step."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, torch.Tensor):
        return None
    return loss.detach() * micro_batches if micro_batches > 1 else loss
