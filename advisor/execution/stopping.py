"""Being asked to stop: Ctrl-C, a scheduler's SIGTERM, a terminal that closes. Noted, and acted upon where nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Asked:
    """How often this process was asked to stop; more than once means at once."""

    def __init__(self) -> None:
        self.times = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it the signals are counted and do nothing else; only in the main thread, where Python has them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._heard) for number in _SIGNALS if not _ignored(number)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _heard(self, *_: Any) -> None:
        self.times += 1


def _ignored(number: signal.Signals) -> bool:
    """Whether `nohup` and the like had it ignored when this process began."""
    return signal.getsignal(number) == signal.SIG_IGN
