"""Handles stop requests: Ctrl-C, SIGTERM from a scheduler, and a closed terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopSignals:
    """Counts stop requests, so that the program can stop at a safe point. The second request means an immediate stop."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count stop signals within the block and suppress their usual effect. Call this only in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Signals that were ignored when the process started (by `nohup`, for example) stay ignored.
        used = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before: dict[int, Any] = {number: signal.signal(number, self._count_signal) for number in used}
        if signal.SIGINT not in before:
            # A script's `advisor run … &` ignores SIGINT. Trainings would inherit the ignored signal and could not be asked to
            # stop. A handler is not inherited.
            before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count_signal(self, *_: Any) -> None:
        self.count += 1
