"""Which of the trainer's metrics are new, and what a training step gives as its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class FreshMetrics:
    """Tells what came new into `trainer.callback_metrics`, which keeps the old values of whatever was not computed since.

    A value is new if it lies elsewhere in memory; nothing is read from the device.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}  # holding them keeps their memory from being used again

    def mark(self, metrics: Mapping[str, Any]) -> None:
        """From here on, what `metrics` holds is old."""
        self._seen = dict(metrics)

    def take(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics that are new; afterwards they are old. Of a loss logged by step and by epoch, the one by epoch."""
        new = {name: value for name, value in metrics.items() if not _is_same(value, self._seen.get(name))}
        self.mark(metrics)
        return {name: value for name, value in new.items() if f"{name}_epoch" not in new and not name.endswith("_step")}


def _is_same(value: Any, seen: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(seen, torch.Tensor):
        return value.data_ptr() == seen.data_ptr()
    return value is seen


def loss_of(outputs: Any, micro_batches: int) -> torch.Tensor | None:
    """The loss that `training_step` returned, None if it returned none. Lightning divides it by the micro-batches of a step."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, torch.Tensor):
        return None
    return loss.detach() * micro_batches if micro_batches > 1 else loss
