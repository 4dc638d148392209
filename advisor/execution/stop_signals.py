"""Handles stop requests: Ctrl-C, SIGTERM from a scheduler, and a closed terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopSignals:
    """Counts stop requests. The first request stops the program at a safe point, the second one immediately."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def count_stop_signals(self) -> Iterator[None]:
        """While the block runs, count stop signals instead of letting them end the program. Call this method only in the main
        thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # A signal that was ignored when the process started (by `nohup`, for example) stays ignored.
        used = [number for number in _STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before: dict[int, Any] = {number: signal.signal(number, self._count_signal) for number in used}
        if signal.SIGINT not in before:
            # In a script, the shell starts `advisor run … &` with SIGINT ignored. Training processes would inherit the ignored
            # SIGINT, and could not be asked to stop. So install a handler, which child processes do not inherit.
            before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count_signal(self, *_: Any) -> None:
        self.count += 1
