"""Requests to stop: Ctrl-C, a scheduler's SIGTERM, a closed terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopSignals:
    """Counts the requests to stop, so that the program can stop at a safe point; a second request means: at once."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the signals inside, instead of their usual effect. Only in the main thread, where Python handles signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # `nohup` and the like start a process with ignored signals, which stay ignored.
        used = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._count) for number in used}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count(self, *_: Any) -> None:
        self.count += 1
