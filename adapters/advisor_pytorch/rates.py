"""Learning rates as steps use them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from advisor import contract
from advisor_pytorch.device import Value, own_copy

MAX_OPTIMIZERS = 8
"""So many optimizers have metrics of their own: where each parameter has one, theirs would be too many to look at."""
MAX_GROUPS = 16
"""So many parameter groups of an optimizer have their rates logged."""


def own_names(metric: str, optimizers: int) -> list[str]:
    """The name of each optimizer's own version of a metric, "" for those that have none: the first, and those beyond the limit."""
    names = [f"{metric}{contract.OPTIMIZER_SUFFIX}{k}" for k in range(optimizers)]
    return [name if 0 < k < MAX_OPTIMIZERS else "" for k, name in enumerate(names)]


class Rates:
    """Reads the learning rates of all parameter groups."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = list(optimizers)[:MAX_OPTIMIZERS]
        self.names: tuple[str, ...] = ()
        """Metrics, in the order of the parameter groups."""
        self.in_tensors: tuple[int, ...] = ()
        """Which of them are tensors."""

    def read(self) -> tuple[list[float], list[torch.Tensor]]:
        """The rates that are numbers, and copies of those that are tensors, which schedulers change in place."""
        optimizers = self._optimizers
        rates = [
            group["lr"] for optimizer in optimizers for group in optimizer.param_groups[:MAX_GROUPS] if "lr" in group
        ]
        if len(rates) != len(self.names):
            self._learn(rates)
        if not self.in_tensors:
            return rates, []
        numbers = [rate for i, rate in enumerate(rates) if i not in self.in_tensors]
        return numbers, [own_copy(rates[i]) for i in self.in_tensors]

    def _learn(self, rates: Sequence[Value]) -> None:
        self.in_tensors = tuple(i for i, rate in enumerate(rates) if isinstance(rate, torch.Tensor))
        firsts = [contract.LEARNING_RATE, *own_names(contract.LEARNING_RATE, len(self._optimizers))[1:]]
        self.names = tuple(
            first + (f"{contract.GROUP_SUFFIX}{j}" if j else "")
            for first, optimizer in zip(firsts, self._optimizers, strict=True)
            for j, group in enumerate(optimizer.param_groups[:MAX_GROUPS])
            if "lr" in group
        )
