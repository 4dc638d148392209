"""Handles outages of the tracking store. During an outage of the tracking store, training runs continue, and calls to the store
are retried at growing intervals."""

from __future__ import annotations

import time
from collections.abc import Callable

from advisor.execution.ledger.record import MAX_RETRY_PAUSE_S, MAX_STORE_WAIT_S


class StoreOutage:
    """Tracks whether the tracking store answers and, if it does not, when to call it again."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """report: function that shows a line to the user; it is called when an outage starts and ends."""
        self._report = report
        self._since: float | None = None
        self.retry_at = 0.0
        """Earliest time of the next call to the tracking store, on the clock of `time.monotonic`."""

    @property
    def is_ongoing(self) -> bool:
        """True if the tracking store did not answer the last call."""
        return self._since is not None

    def note(self) -> None:
        """Record that the tracking store did not answer a call."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._report("The tracking store does not answer; runs continue, and we save their results until it does.")
        self.retry_at = now + min(max(1.0, (now - self._since) / 4), MAX_RETRY_PAUSE_S)

    def end(self) -> None:
        """Record that the tracking store answered a call."""
        if self._since is not None:
            self._report("The tracking store answers again.")
        self._since, self.retry_at = None, 0.0

    def has_lasted_too_long(self) -> bool:
        """Return whether the outage has lasted so long that a launch without running trials should end."""
        return self._since is not None and time.monotonic() - self._since > MAX_STORE_WAIT_S
