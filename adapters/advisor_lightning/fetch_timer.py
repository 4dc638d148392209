"""The time for which the training loop waits for its batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FETCH = ".train_dataloader_next"
"""Name of the wait for a training batch in Lightning's profilers: `[_TrainingEpochLoop].train_dataloader_next`."""


class FetchTimer:
    """Intercepts the trainer's calls of its profiler until `stop`, and passes on each wait in seconds.

    The time between two batches would include loggers and checkpoints.
    """

    def __init__(self, profiler: Any, begin: Callable[[], None], end: Callable[[float], None]) -> None:
        self._profiler, self._begin, self._end = profiler, begin, end
        self._inner_start, self._inner_stop = profiler.start, profiler.stop
        self._started: float | None = None
        profiler.start, profiler.stop = self._start, self._stop

    def stop(self) -> None:
        """Restore the profiler."""
        for name, own in (("start", self._start), ("stop", self._stop)):
            if vars(self._profiler).get(name) == own:
                delattr(self._profiler, name)

    def _start(self, action_name: str) -> None:
        if action_name.endswith(FETCH):
            self._begin()
            self._started = time.perf_counter()
        self._inner_start(action_name)

    def _stop(self, action_name: str) -> None:
        self._inner_stop(action_name)
        if self._started is not None and action_name.endswith(FETCH):
            self._end(time.perf_counter() - self._started)
            self._started = None
