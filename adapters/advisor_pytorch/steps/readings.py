"""Reads the values of a step in the training thread: its durations, learning rates and losses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from advisor import contract
from advisor_pytorch.steps.device import ScalarValue, detached_copy

STEP_TIME_METRICS = (contract.STEP_TIME, contract.DATA_WAIT, contract.COMPUTE_TIME)

CudaEventPair = tuple[torch.cuda.Event, torch.cuda.Event]


class StepClock:
    """Measures times on the host, and compute time on a GPU by CUDA events, so that the host need not wait."""

    def __init__(self, device: torch.device | None) -> None:
        self._device = device
        self._last: float | None = None
        self._waits = False
        self.events: CudaEventPair | None = None
        """Two CUDA events of the last step: the arrival of its first batch, and its end."""
        self.discard_batches()

    def discard_batches(self) -> None:
        self.examples = self.batches = 0
        """Number of examples, and number of batches, recorded for the next training step."""
        self._waited = self._waited_within = 0.0
        self._arrived: float | None = None
        self._arrival: torch.cuda.Event | None = None

    def add_batch(self, waited_s: float, examples: int | None) -> None:
        self._waits = True
        self._waited += waited_s
        self.batches += 1
        if examples is not None:
            self.examples += examples
        if self._arrived is not None:
            self._waited_within += waited_s
            return
        self._arrived = time.perf_counter()
        if self._device is not None and not torch.cuda.is_current_stream_capturing():
            self._arrival = _record_event(self._device)

    def end_step(self, row: list[float]) -> int:
        """Return the number n of appended times, which are the first n of STEP_TIME_METRICS."""
        now, last = time.perf_counter(), self._last
        self._last = now
        self.events = None
        time_count = 0
        if last is not None:  # the first step has no earlier step from which to measure the time
            row.append(now - last)
            time_count = 1
            if self._waits:
                row.append(self._waited)
                time_count = 2
                if self._arrival is not None and self._device is not None:
                    self.events = self._arrival, _record_event(self._device)
                elif self._arrived is not None and self._device is None:
                    row.append(now - self._arrived - self._waited_within)
                    time_count = 3
        if self._waits:
            self.discard_batches()
        return time_count

    def restart(self) -> None:
        """Start timing the next step now, because the time until now was not spent on training."""
        if self._last is not None:
            self._last = time.perf_counter()
            self._waited = self._waited_within = 0.0
            self._arrived = None if self._arrived is None else self._last
            self._arrival = None

    @property
    def last_step_s(self) -> float:
        """Time of the last step on the host's clock, in seconds; 0.0 before the first step."""
        return self._last or 0.0


def _record_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    event.record(torch.cuda.current_stream(device))
    return event


MAX_OPTIMIZERS = 8
"""Maximum number of optimizers with their own metrics, because some loops have one optimizer per parameter."""
MAX_PARAMETER_GROUPS = 16
"""Maximum number of parameter groups per optimizer whose learning rates are logged."""


def metric_names_by_optimizer(metric: str, optimizers: int) -> list[str]:
    """The first optimizer, and all beyond `MAX_OPTIMIZERS`, have no own name ("")."""
    names = [f"{metric}{contract.OPTIMIZER_SUFFIX}{k}" for k in range(optimizers)]
    return [name if 0 < k < MAX_OPTIMIZERS else "" for k, name in enumerate(names)]


class LearningRateReader:
    """Reads the learning rates of all parameter groups; `number_names` and `tensor_names` are the metric names of the rates."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = tuple(optimizers[:MAX_OPTIMIZERS])
        self._count = -1
        self._in_numbers: list[int] = []
        self._in_tensors: list[int] = []
        self.number_names: tuple[str, ...] = ()
        self.tensor_names: tuple[str, ...] = ()

    def read(self) -> tuple[list[float], list[torch.Tensor]]:
        """Return rates that are numbers, and copies of rates that are tensors, because schedulers change tensors in place."""
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
        logged_indices = [i for i, (_, j) in enumerate(groups) if j < MAX_PARAMETER_GROUPS and rates[i] is not None]
        self._in_tensors = [i for i in logged_indices if isinstance(rates[i], torch.Tensor)]
        self._in_numbers = [i for i in logged_indices if not isinstance(rates[i], torch.Tensor)]
        self.number_names = tuple(names[i] for i in self._in_numbers)
        self.tensor_names = tuple(names[i] for i in self._in_tensors)


class PendingLosses:
    """The losses of one optimizer step: one loss per micro-batch."""

    def __init__(self, batch_size: int | None) -> None:
        """batch_size: number of examples that is assumed for a loss logged without this number; None if unknown."""
        self._batch_size = batch_size
        self.clear()

    def clear(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[float] = []
        self.explicit_examples = self.nominal_examples = 0

    def add_loss(self, loss: ScalarValue, examples: int | None) -> None:
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
