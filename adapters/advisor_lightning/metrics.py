"""Finds the newly logged values among the trainer's metrics, and the loss of a training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class UnseenMetrics:
    """Finds the metrics in `trainer.callback_metrics` that were logged since the last call, because `callback_metrics` also
    keeps the values of earlier steps.

    A metric's value counts as new if its tensor has a different memory address than at the last call, so no value is copied
    from the device.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # the references to the tensors keep Python from reusing their memory addresses

    def mark_all_seen(self, metrics: Mapping[str, Any]) -> None:
        """Mark the current metrics as seen."""
        self._seen = dict(metrics)

    def take_unseen(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the unseen metrics, and mark them as seen. If a loss is logged both per step and per epoch, only the epoch's
        value is returned."""
        new = {name: value for name, value in metrics.items() if not _is_value_already_seen(value, self._seen.get(name))}
        self.mark_all_seen(metrics)
        return {name: value for name, value in new.items() if f"{name}_epoch" not in new and not name.endswith("_step")}


def _is_value_already_seen(value: Any, earlier: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(earlier, torch.Tensor):
        return value.data_ptr() == earlier.data_ptr()
    return value is earlier


def step_loss(outputs: Any, micro_batches: int) -> torch.Tensor | None:
    """Return the loss in the output of `training_step`; None if the output has no loss. Lightning divides the loss by the
    number of micro-batches, so the returned loss is multiplied by this number."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, torch.Tensor):
        return None
    return loss.detach() * micro_batches if micro_batches > 1 else loss
