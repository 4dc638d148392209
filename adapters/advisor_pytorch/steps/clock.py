"""Measures three durations per training step: the time since the previous step, the wait for batches, and the computation time."""

from __future__ import annotations

import time

import torch

from advisor import contract

STEP_TIME_METRICS = (contract.STEP_TIME, contract.DATA_WAIT, contract.COMPUTE_TIME)

CudaEventPair = tuple[torch.cuda.Event, torch.cuda.Event]


class StepClock:
    """Measures times on the host. On a GPU, CUDA events measure the compute time, so that the host need not wait for the GPU."""

    def __init__(self, device: torch.device | None) -> None:
        """device: the CUDA device on which the training runs; None if it uses no CUDA device."""
        self._device = device
        self._last: float | None = None
        self._waits = False
        self.events: CudaEventPair | None = None
        """Two CUDA events of the last step: the arrival of its first batch, and its end."""
        self.discard_batches()

    def discard_batches(self) -> None:
        """Discard the batches recorded since the last step."""
        self.examples = self.batches = 0
        """Number of examples, and number of batches, recorded for the next training step."""
        self._waited = self._waited_within = 0.0
        self._arrived: float | None = None
        self._arrival: torch.cuda.Event | None = None

    def batch(self, waited_s: float, examples: int | None) -> None:
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

    def step(self, row: list[float]) -> int:
        """Append the times of a finished step to its row of metrics. Return the number n of appended times, which are the first
        n of STEP_TIME_METRICS."""
        now, last = time.perf_counter(), self._last
        self._last = now
        self.events = None
        known = 0
        if last is not None:  # the first step has no earlier step from which to measure the time
            row.append(now - last)
            known = 1
            if self._waits:
                row.append(self._waited)
                known = 2
                if self._arrival is not None and self._device is not None:
                    self.events = self._arrival, _record_event(self._device)
                elif self._arrived is not None and self._device is None:
                    row.append(now - self._arrived - self._waited_within)
                    known = 3
        if self._waits:
            self.discard_batches()
        return known

    def restart(self) -> None:
        """Start timing the next step now, because the time until now was not spent on training."""
        if self._last is not None:
            self._last = time.perf_counter()
            self._waited = self._waited_within = 0.0
            self._arrived = None if self._arrived is None else self._last
            self._arrival = None

    @property
    def last(self) -> float:
        """Time of the last step on the host's clock, in seconds; 0.0 before the first step."""
        return self._last or 0.0


def _record_event(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    event.record(torch.cuda.current_stream(device))
    return event
