"""How long the training loop waits for its batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FETCH = ".train_dataloader_next"
"""How Lightning's profilers call the wait for a training batch: `[_TrainingEpochLoop].train_dataloader_next`."""


class FetchTimer:
    """Listens to what the trainer tells its profiler, from the making of this to `stop`, and tells each wait in seconds.

    The time between two batches would not do: loggers and checkpoints are written in it.
    """

    def __init__(self, profiler: Any, begin: Callable[[], None], end: Callable[[float], None]) -> None:
        self._profiler, self._begin, self._end = profiler, begin, end
        self._inner_start, self._inner_stop = profiler.start, profiler.stop
        self._asked: float | None = None
        profiler.start, profiler.stop = self._start, self._stop

    def stop(self) -> None:
        """Leave the profiler as it was."""
        for name, own in (("start", self._start), ("stop", self._stop)):
            if vars(self._profiler).get(name) == own:
                delattr(self._profiler, name)

    def _start(self, action_name: str) -> None:
        if action_name.endswith(FETCH):
            self._begin()
            self._asked = time.perf_counter()
        self._inner_start(action_name)

    def _stop(self, action_name: str) -> None:
        self._inner_stop(action_name)
        if self._asked is not None and action_name.endswith(FETCH):
            self._end(time.perf_counter() - self._asked)
            self._asked = None
