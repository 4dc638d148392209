"""Frames can be read again, also after crashes and on a full disk."""

from __future__ import annotations

import errno
import math
import os
import resource
import time
from pathlib import Path

import pytest

from advisor_logging import sidecar, spool, spool as module
from advisor_logging.spool import (
    EVALUATION,
    STEPS,
    Acknowledgement,
    FrameBacklog,
    SpoolPosition,
    SpoolWriter,
    encode_rows,
    read_frames,
)


def test_rows_and_events_come_back(tmp_path: Path) -> None:
    rows = [(0, 10, {"a": 1.5}), (1, 11, {"a": math.nan, "b": -math.inf}), (2, 12, {"a": 2.5, "b": 0.0})]
    writer = spool.SpoolWriter(tmp_path)
    writer.append(spool.encode_rows(spool.STEPS, rows) + spool.encode_event({"tags": {"x": "ü"}}))
    frames = list(spool.read_frames(tmp_path, SpoolPosition()))
    back = [row for f in frames[:-1] for row in f.rows()]
    assert str(back) == str(rows)
    assert frames[-1].event() == {"tags": {"x": "ü"}}
    assert list(spool.read_frames(tmp_path, frames[-1].end)) == []


def test_a_torn_frame_is_not_read_until_it_is_whole(tmp_path: Path) -> None:
    whole = spool.encode_rows(spool.STEPS, [(0, 0, {"a": 1.0})])
    path = spool.segment_path(tmp_path, 0)
    for cut in range(len(whole)):
        path.write_bytes(whole + whole[:cut])
        assert len(list(spool.read_frames(tmp_path, SpoolPosition()))) == 1
    path.write_bytes(whole + whole[:-1] + b"\x00")
    assert len(list(spool.read_frames(tmp_path, SpoolPosition()))) == 1


def test_acknowledged_segments_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MAX_SEGMENT_BYTES", 200)
    writer = spool.SpoolWriter(tmp_path)
    for step in range(50):
        writer.append(spool.encode_rows(spool.STEPS, [(step, 0, {"a": 1.0})]))
    frames = list(spool.read_frames(tmp_path, SpoolPosition()))
    assert [f.rows()[0][0] for f in frames] == list(range(50))
    assert len(list(tmp_path.glob("*.spool"))) > 5
    done = Acknowledgement(frames[-1].start, 49)
    spool.write_acknowledgement(tmp_path, done)
    assert spool.read_acknowledgement(tmp_path) == done
    assert sidecar.archive_segments(tmp_path, done.position.segment) is None
    assert len(list(tmp_path.glob("*.spool"))) == 1
    assert [p.last_step for p in spool.list_segment_parts(tmp_path)][-1] < 49


def test_a_file_that_may_not_grow_is_left_for_another(tmp_path: Path) -> None:
    """A file size limit, as clusters set it, ends a segment, but not the training or the end of its run."""
    writer = spool.SpoolWriter(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(OSError):  # noqa: PT012
            for step in range(1000):
                writer.append(spool.encode_rows(spool.STEPS, [(step, 0, {"a": 1.0})]))
        writer.append(spool.encode_event({"end": {}}), critical=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    frames = list(spool.read_frames(tmp_path, spool.SpoolPosition()))
    assert frames[-1].event() == {"end": {}}
    assert [f.rows()[0][0] for f in frames[:-1]] == list(range(len(frames) - 1))
    assert len(frames) > 50


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
    assert backlog.dropped_points == 0


def test_what_waits_is_bounded_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BACKLOG_BYTES", 2 * len(rows(0)))
    writer = SpoolWriter(tmp_path)
    disk, backlog = Disk(writer, monkeypatch), FrameBacklog(writer)
    disk.error = errno.EIO
    for step in range(5):
        backlog.append(rows(step), 1, critical=False)
    assert (backlog.points, backlog.dropped_points) == (2, 3)
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
