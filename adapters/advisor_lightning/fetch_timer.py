"""Measures how long the training loop waits for batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FETCH_ACTION_SUFFIX = ".train_dataloader_next"
"""Suffix of the name of the profiler action that measures the wait for a training batch, such as
`[_TrainingEpochLoop].train_dataloader_next`."""


class FetchTimer:
    """Measures the seconds that each batch is waited for, by intercepting calls of the trainer's profiler until `stop` is
    called.

    The time from one batch to the next is not measured, because it also includes the time of loggers and checkpoints.
    """

    def __init__(self, profiler: Any, begin: Callable[[], None], end: Callable[[float], None]) -> None:
        self._profiler, self._begin, self._end = profiler, begin, end
        self._inner_start, self._inner_stop = profiler.start, profiler.stop
        self._started: float | None = None
        profiler.start, profiler.stop = self._start_action, self._stop_action

    def stop(self) -> None:
        for name, own in (("start", self._start_action), ("stop", self._stop_action)):
            if vars(self._profiler).get(name) == own:
                delattr(self._profiler, name)

    def _start_action(self, action_name: str) -> None:
        if action_name.endswith(FETCH_ACTION_SUFFIX):
            self._begin()
            self._started = time.perf_counter()
        self._inner_start(action_name)

    def _stop_action(self, action_name: str) -> None:
        self._inner_stop(action_name)
        if self._started is not None and action_name.endswith(FETCH_ACTION_SUFFIX):
            self._end(time.perf_counter() - self._started)
            self._started = None
