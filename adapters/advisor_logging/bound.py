"""Keeps a spool within its share of the disk: ADVISOR_SPOOL_MB megabytes a run, `DEFAULT_MB` unless it says otherwise.

What goes first when the share is used up, and what is kept:

1. What the store has already, oldest first: the run loses nothing, its sidecar begins later and says so.
2. Steps that the store does not have yet, because it is out of reach: of their rows every second is kept once half of the share is
   taken by them, every fourth once half of the rest is, and so on, so that a curve grows coarser but goes on to the end of the
   training. What is left out is counted in the tag `advisor.lost_points`.
3. Evaluations, only once the whole share is taken. Tags and the end of the run are written in any case.
"""

from __future__ import annotations

import os
from pathlib import Path

from advisor_logging.spool import SEGMENT_BYTES, drop_part, parts

VARIABLE = "ADVISOR_SPOOL_MB"
DEFAULT_MB = 1024.0
COARSEST = 64
"""At least one row in this many is kept, as long as there is any room for steps."""


def limit_from_environment() -> int:
    """The bound in bytes. Raises ValueError when the variable is no positive number."""
    given = os.environ.get(VARIABLE, "").strip()
    try:
        megabytes = float(given) if given else DEFAULT_MB
        if not 0 < megabytes < float("inf"):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{VARIABLE} must be a positive number of megabytes, not {given!r}; {DEFAULT_MB:g} is used"
        ) from None
    return int(megabytes * 2**20)


class DiskBound:
    """Watches the spool in `folder`, which its one writer keeps within `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._unseen, self._waiting = 0, 0

    @property
    def segment_bytes(self) -> int:
        """The size of a segment: small beside the bound, since only whole ones make room."""
        return min(SEGMENT_BYTES, self._limit // 16)

    def wrote(self, size: int) -> None:
        """Take note of bytes appended."""
        self._unseen += size
        if self._unseen >= self._limit // 128:
            self._unseen = 0
            self._look()

    def keep_every(self) -> int:
        """Of the steps' rows to come, one in this many has room; 0: none has."""
        free = self._limit - self._waiting - self._unseen
        every = 1
        while free < self._limit // (2 * every):
            every *= 2
            if every > COARSEST:
                return 0
        return every

    def is_full(self) -> bool:
        """Whether evaluations have no room either."""
        return self._waiting + self._unseen >= self._limit

    def _look(self) -> None:
        """See what lies there; what the store has makes room for what it does not have."""
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
    except OSError:  # the shipper removed it meanwhile
        return 0
