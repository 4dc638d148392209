"""Reads the learning rates that optimizers use for their steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.device import ScalarValue, detached_copy

MAX_OPTIMIZERS = 8
"""Maximum number of optimizers with their own metrics, because some loops have one optimizer per parameter."""
MAX_PARAMETER_GROUPS = 16
"""Maximum number of parameter groups per optimizer whose learning rates are logged."""


def metric_names_by_optimizer(metric: str, optimizers: int) -> list[str]:
    """Return each optimizer's own name for a metric; "" for the first optimizer and for all optimizers beyond `MAX_OPTIMIZERS`."""
    names = [f"{metric}{contract.OPTIMIZER_SUFFIX}{k}" for k in range(optimizers)]
    return [name if 0 < k < MAX_OPTIMIZERS else "" for k, name in enumerate(names)]


class LearningRateReader:
    """Reads the learning rates of all parameter groups. The attributes hold the metric names of the learning rates: one list
    for rates that are numbers, one for rates that are tensors."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = tuple(optimizers[:MAX_OPTIMIZERS])
        self._count = -1
        self._in_numbers: list[int] = []
        self._in_tensors: list[int] = []
        self.number_names: tuple[str, ...] = ()
        self.tensor_names: tuple[str, ...] = ()

    def read(self) -> tuple[list[float], list[torch.Tensor]]:
        """Return (learning rates that are numbers, copies of the learning rates that are tensors). Tensors are copied, because
        schedulers change them in place."""
        rates: list[Any] = [group.get("lr") for optimizer in self._optimizers for group in optimizer.param_groups]
        if len(rates) != self._count:
            self._assign_names(rates)
        if len(self._in_numbers) == self._count:
            return rates, []
        return [rates[i] for i in self._in_numbers], [detached_copy(rates[i]) for i in self._in_tensors]

    def _assign_names(self, rates: Sequence[ScalarValue | None]) -> None:
        self._count = len(rates)
        suffixes = metric_names_by_optimizer("", len(self._optimizers))
        groups = [(k, j) for k, optimizer in enumerate(self._optimizers) for j in range(len(optimizer.param_groups))]
        names = [contract.LEARNING_RATE + suffixes[k] + (f"{contract.GROUP_SUFFIX}{j}" if j else "") for k, j in groups]
        logged = [i for i, (_, j) in enumerate(groups) if j < MAX_PARAMETER_GROUPS and rates[i] is not None]
        self._in_tensors = [i for i in logged if isinstance(rates[i], torch.Tensor)]
        self._in_numbers = [i for i in logged if not isinstance(rates[i], torch.Tensor)]
        self.number_names = tuple(names[i] for i in self._in_numbers)
        self.tensor_names = tuple(names[i] for i in self._in_tensors)
