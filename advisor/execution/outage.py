"""Handles outages of the tracking store. During an outage, trainings continue and calls to the store are retried at growing
intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from advisor.execution.ledger.record import MAX_RETRY_PAUSE_S, MAX_STORE_WAIT_S


class StoreOutage:
    """Tracks if the tracking store answers and, if it does not, when to call it again."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """report: function that shows a line to the user; it is called at the start and at the end of an outage."""
        self._report = report
        self._since: float | None = None
        self.retry_at = 0.0
        """Earliest time of the next call to the tracking store, as a value of `time.monotonic`."""

    @property
    def lasts(self) -> bool:
        """True if the tracking store did not answer the last call."""
        return self._since is not None

    def note(self) -> None:
        """Record that the tracking store did not answer a call."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._report("The store does not answer; trainings continue, and how they end is kept until it does.")
        self.retry_at = now + min(max(1.0, (now - self._since) / 4), MAX_RETRY_PAUSE_S)

    def end(self) -> None:
        """Record that the tracking store answered a call."""
        if self._since is not None:
            self._report("The store answers again.")
        self._since, self.retry_at = None, 0.0

    def is_too_long(self) -> bool:
        """Return whether the outage has lasted so long that a launch should end if it has no running training."""
        return self._since is not None and time.monotonic() - self._since > MAX_STORE_WAIT_S
