"""Keeps encoded rows (frames) in memory, in order, while the disk does not accept them."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple

from advisor_logging.spool import SpoolWriter

MAX_BACKLOG_BYTES = 64 << 20
"""Maximum total bytes of the frames that wait in memory to be written to disk. Points in frames beyond `MAX_BACKLOG_BYTES` are
lost."""
WRITE_RETRY_S = 0.5
"""Minimum seconds between two attempts to write the waiting frames to disk."""


class _WaitingFrame(NamedTuple):
    frame: bytes
    points: int
    critical: bool


class FrameBacklog:
    """Appends frames to a spool, and keeps frames in memory if writing them fails."""

    def __init__(self, spool: SpoolWriter) -> None:
        self._spool = spool
        self._frames: deque[_WaitingFrame] = deque()
        self._size, self._tried_at = 0, -math.inf
        self.problem: OSError | None = None
        """Error of the last attempt to write frames to disk; None if no attempt has failed."""
        self.dropped = 0
        """Number of metric points lost because the waiting frames reached their memory limit."""

    @property
    def points(self) -> int:
        return sum(one.points for one in self._frames)

    def append(self, frame: bytes, points: int = 0, *, critical: bool = False) -> bool:
        """Write a frame, which contains `points` metric points, to disk. Return whether the frame is on disk. A `critical`
        frame may be written before frames that were added earlier and still wait in memory."""
        self.retry()
        if not self._frames or (critical and not any(one.critical for one in self._frames)):
            try:
                self._spool.append(frame, critical=critical)
                return True
            except OSError as error:
                self.problem = error
        if self._size + len(frame) > MAX_BACKLOG_BYTES and not critical:
            self.dropped += points
        else:
            self._frames.append(_WaitingFrame(frame, points, critical))
            self._size += len(frame)
        return False

    def retry(self, *, at_once: bool = False) -> bool:
        """Write the waiting frames to disk, unless the last attempt was less than `WRITE_RETRY_S` seconds ago. Return whether
        all waiting frames are now on disk."""
        if self._frames and (at_once or time.monotonic() - self._tried_at >= WRITE_RETRY_S):
            self._tried_at = time.monotonic()
            try:
                while self._frames:
                    self._spool.append(self._frames[0].frame, critical=self._frames[0].critical)
                    self._size -= len(self._frames.popleft().frame)
            except OSError as error:
                self.problem = error
        return not self._frames

    def drop_waiting_frames(self) -> int:
        """Drop the waiting frames, and return the number of metric points lost with them."""
        lost = self.points
        self._frames.clear()
        self._size = 0
        return lost
