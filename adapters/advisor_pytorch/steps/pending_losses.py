"""Collects the losses, with their numbers of examples, that the training loop has logged since the last row."""

from __future__ import annotations

import torch

from advisor_pytorch.steps.device import ScalarValue


class PendingLosses:
    """The losses of one optimizer step: one loss per micro-batch."""

    def __init__(self, batch_size: int | None) -> None:
        """batch_size: number of examples that is assumed for a loss logged without this number; None if unknown."""
        self._batch_size = batch_size
        self.clear()

    def clear(self) -> None:
        """Discard all losses."""
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.explicit_examples = self.nominal_examples = 0

    def add(self, loss: ScalarValue, examples: int | None) -> None:
        """Add a loss. examples: number of examples in its micro-batch; None if unknown."""
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
