"""Keeps the size of a spool folder within its disk quota of ADVISOR_SPOOL_MB megabytes.

If the spool exceeds its disk quota, data is deleted in this order:

1. Segments and sidecar parts whose data the store has, oldest first. The run's sidecar then starts at a later step.
2. New training steps, if the store is unreachable. When undelivered steps fill half of the quota, only every second new step is
   recorded; each time that half of the rest is filled, this interval doubles, so the curves still cover the whole training.
3. Evaluations, if the quota is exhausted; never tags and the end of the run. The tag `advisor.lost_points` counts lost points.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path

from advisor_logging.spool import MAX_SEGMENT_BYTES, delete_segment_part, list_segment_parts

SPOOL_QUOTA_VARIABLE = "ADVISOR_SPOOL_MB"
DEFAULT_SPOOL_QUOTA_MB = 1024.0
MAX_ROW_INTERVAL = 64
"""Maximum interval, in training steps, between two stored rows. If the disk quota has no room even for one row per
`MAX_ROW_INTERVAL` steps, all further rows of training steps are dropped."""


def read_quota_bytes(warn: Callable[[str, str], None]) -> int:
    """Return the disk quota of a spool in bytes; warn if ADVISOR_SPOOL_MB is not a positive number."""
    text = os.environ.get(SPOOL_QUOTA_VARIABLE, "").strip()
    megabytes = math.nan
    with contextlib.suppress(ValueError):
        megabytes = float(text or DEFAULT_SPOOL_QUOTA_MB)
    if not 0 < megabytes < math.inf:
        megabytes = DEFAULT_SPOOL_QUOTA_MB
        requirement = "must be a positive number of megabytes"
        warn(SPOOL_QUOTA_VARIABLE, f"{SPOOL_QUOTA_VARIABLE} {requirement}, not {text!r}; {megabytes:g} is used")
    return int(megabytes * 2**20)


class DiskQuota:
    """Limits the size of the spool folder to `limit` bytes. Only one process or thread may write to the spool."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._uncounted, self._waiting = 0, 0

    @property
    def segment_bytes(self) -> int:
        """Maximum bytes of a segment: a small fraction of the disk quota, because only whole segments can be deleted."""
        return min(MAX_SEGMENT_BYTES, self._limit // 16)

    def add_bytes(self, size: int) -> None:
        self._uncounted += size
        if self._uncounted >= self._limit // 128:
            self._uncounted = 0
            self._enforce_quota()

    def row_interval(self) -> int:
        """Return the interval, in training steps, between stored rows; 0 if the disk quota has no room for further rows."""
        free_bytes = self._limit - self._waiting - self._uncounted
        interval = 1
        while free_bytes < self._limit // (2 * interval):
            interval *= 2
            if interval > MAX_ROW_INTERVAL:
                return 0
        return interval

    def is_full(self) -> bool:
        """Return whether the disk quota has no room for any more data, not even for evaluations."""
        return self._waiting + self._uncounted >= self._limit

    def _enforce_quota(self) -> None:
        """If the spool exceeds its quota, delete sidecar parts, whose data the store already has."""
        self._waiting = sum(_bytes_on_disk(path) for path in self._folder.glob("*.spool"))
        sizes_of_parts = [(part, _bytes_on_disk(part.path)) for part in list_segment_parts(self._folder)]
        excess_bytes = self._waiting + sum(size for _, size in sizes_of_parts) - self._limit
        for part, size in sizes_of_parts:
            if excess_bytes <= 0:
                return
            delete_segment_part(self._folder, part)
            excess_bytes -= size


def _bytes_on_disk(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # the shipper process has deleted the file after the folder was listed
        return 0
