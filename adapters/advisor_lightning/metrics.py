"""Detection of new values among the trainer's metrics, and the loss of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class FreshMetrics:
    """Finds the new values in `trainer.callback_metrics`, which also contains old values of other metrics.

    A value is new if its memory address is new, so that no value has to be read from the device.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # references keep the memory addresses from being reused

    def mark_all_old(self, metrics: Mapping[str, Any]) -> None:
        """Treat all present values as old."""
        self._seen = dict(metrics)

    def take_new(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the new metrics and mark them as old. If a loss is logged by step and by epoch, return only the epoch's value."""
        new = {name: value for name, value in metrics.items() if not _is_same_value(value, self._seen.get(name))}
        self.mark_all_old(metrics)
        return {name: value for name, value in new.items() if f"{name}_epoch" not in new and not name.endswith("_step")}


def _is_same_value(value: Any, earlier: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(earlier, torch.Tensor):
        return value.data_ptr() == earlier.data_ptr()
    return value is earlier


def step_loss(outputs: Any, micro_batches: int) -> torch.Tensor | None:
    """Return the loss in the output of `training_step`, or None. Lightning divides the loss by the micro-batches of a step."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, torch.Tensor):
        return None
    return loss.detach() * micro_batches if micro_batches > 1 else loss
