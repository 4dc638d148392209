"""Keep a spool within its disk quota: ADVISOR_SPOOL_MB megabytes per run, by default `DEFAULT_MB`.

If the quota is exceeded, data is dropped in this order:

1. Data that the store already has, oldest first. The run loses nothing; its sidecar starts later and says so.
2. Steps that an unreachable store does not have. Once they fill half of the quota, every second row is kept, every fourth once
   they fill half of the rest, and so on: the curve becomes coarser but reaches the end of the training. The tag
   `advisor.lost_points` counts the dropped points.
3. Evaluations, once the whole quota is used. Tags and the end of the run are always written.
"""

from __future__ import annotations

import os
from pathlib import Path

from advisor_logging.spool import SEGMENT_BYTES, drop_part, parts

VARIABLE = "ADVISOR_SPOOL_MB"
DEFAULT_MB = 1024.0
MAX_ROW_INTERVAL = 64
"""Maximum distance of kept rows, in steps, while there is any room for steps."""


def read_limit() -> int:
    """Return the quota in bytes. Raises ValueError if the variable is no positive number."""
    text = os.environ.get(VARIABLE, "").strip()
    try:
        megabytes = float(text) if text else DEFAULT_MB
        if not 0 < megabytes < float("inf"):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{VARIABLE} must be a positive number of megabytes, not {text!r}; {DEFAULT_MB:g} is used"
        ) from None
    return int(megabytes * 2**20)


class DiskQuota:
    """Tracks the size of the spool in `folder`, whose one writer keeps it within `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._uncounted, self._waiting = 0, 0

    @property
    def segment_bytes(self) -> int:
        """Maximum bytes of a segment: small relative to the quota, because only whole segments can be dropped."""
        return min(SEGMENT_BYTES, self._limit // 16)

    def add(self, size: int) -> None:
        """Count appended bytes."""
        self._uncounted += size
        if self._uncounted >= self._limit // 128:
            self._uncounted = 0
            self._measure()

    def row_interval(self) -> int:
        """Return the interval of step rows to keep, in steps; 0 if there is no room for steps."""
        free = self._limit - self._waiting - self._uncounted
        every = 1
        while free < self._limit // (2 * every):
            every *= 2
            if every > MAX_ROW_INTERVAL:
                return 0
        return every

    def is_full(self) -> bool:
        """Return whether there is no room for evaluations either."""
        return self._waiting + self._uncounted >= self._limit

    def _measure(self) -> None:
        """Measure the spool and drop delivered parts to make room for undelivered segments."""
        self._waiting = sum(_size(path) for path in self._folder.glob("*.spool"))
        stored = [(part, _size(part.path)) for part in parts(self._folder)]
        excess = self._waiting + sum(size for _, size in stored) - self._limit
        for part, size in stored:
            if excess <= 0:
                return
            drop_part(self._folder, part)
            excess -= size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the shipper removed it in the meantime
        return 0
