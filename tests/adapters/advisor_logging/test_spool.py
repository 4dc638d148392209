"""Frames can be read again, also after crashes and on a full disk."""

from __future__ import annotations

import math
import resource
from pathlib import Path

import pytest

from advisor_logging import sidecar, spool
from advisor_logging.spool import Acknowledgement, SpoolPosition


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
