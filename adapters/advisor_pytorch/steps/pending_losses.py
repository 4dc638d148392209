"""Losses that the loop logged since the last row, and the numbers of their examples."""

from __future__ import annotations

import torch

from advisor_pytorch.steps.device import Value


class PendingLosses:
    """The losses of one step: one for each of its micro-batches."""

    def __init__(self, batch_size: int | None) -> None:
        """batch_size: examples of a loss that is logged without their number; None if unknown."""
        self._batch_size = batch_size
        self.clear()

    def clear(self) -> None:
        """Forget all losses."""
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.explicit_examples = self.nominal_examples = 0

    def add(self, loss: Value, examples: int | None) -> None:
        """Add a loss. examples: number of its examples, if the loop knows it."""
        if isinstance(loss, torch.Tensor):
            self.tensors.append(loss)
        else:
            self.numbers.append(loss)
        if examples is not None:
            self.explicit_examples += examples
        elif self._batch_size is not None:
            self.nominal_examples += self._batch_size

    def __len__(self) -> int:
        return len(self.tensors) + len(self.numbers)
