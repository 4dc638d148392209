"""A disk that refuses the spool for a while loses nothing; what waits in memory is bounded and counted."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from advisor_logging import backlog as module
from advisor_logging.backlog import FrameBacklog
from advisor_logging.spool import EVALUATION, STEPS, SpoolPosition, SpoolWriter, encode_rows, read_frames


class Disk:
    """Lets writes to a spool fail, as an operating system reports it, also after a part of the data."""

    def __init__(self, writer: SpoolWriter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error, self.torn = 0, False
        self._file = writer._file
        writer._file = self  # type: ignore[assignment]
        self._truncate = os.ftruncate
        monkeypatch.setattr(os, "ftruncate", self.ftruncate)

    def write(self, data: bytes) -> int:
        if self.error and self.torn:
            return self._file.write(data[: len(data) // 2])
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return self._file.write(data)

    def ftruncate(self, descriptor: int, size: int) -> None:
        if self.error == errno.EROFS:
            raise OSError(self.error, os.strerror(self.error))
        self._truncate(descriptor, size)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def rows(step: int, kind: int = STEPS) -> bytes:
    return encode_rows(kind, [(step, 1_700_000_000_000 + step, {"loss": 0.5})])


def written(folder: Path) -> list[int]:
    return [step for frame in read_frames(folder, SpoolPosition()) for step, _, _ in frame.rows()]


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_frames_wait_in_order(error: int, torn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(tmp_path)
    disk, backlog = Disk(writer, monkeypatch), FrameBacklog(writer)
    assert backlog.append(rows(0), 1, critical=False)
    disk.error, disk.torn = error, torn
    assert not any(backlog.append(rows(step), 1, critical=False) for step in (1, 2, 3))
    assert backlog.points == 3
    assert not backlog.retry(at_once=True)
    disk.error = 0
    assert backlog.retry(at_once=True)
    assert backlog.append(rows(4), 1, critical=False)
    writer.close()
    assert written(tmp_path) == [0, 1, 2, 3, 4]
    assert backlog.dropped == 0


def test_what_waits_is_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BACKLOG_BYTES", 2 * len(rows(0)))
    writer = SpoolWriter(tmp_path)
    disk, backlog = Disk(writer, monkeypatch), FrameBacklog(writer)
    disk.error = errno.EIO
    for step in range(5):
        backlog.append(rows(step), 1, critical=False)
    assert (backlog.points, backlog.dropped) == (2, 3)
    assert backlog.drop_waiting_frames() == 2
    assert backlog.retry()


def test_evaluations_do_not_wait_for_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(tmp_path)
    disk, backlog = Disk(writer, monkeypatch), FrameBacklog(writer)
    disk.error = errno.EIO
    backlog.append(rows(1), 1, critical=False)
    backlog._tried_at = time.monotonic() + 1e6
    disk.error = 0
    assert backlog.append(rows(7, EVALUATION), 1, critical=True)
    assert written(tmp_path) == [7]
    assert backlog.retry(at_once=True)
    assert written(tmp_path) == [7, 1]
