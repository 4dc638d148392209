"""Spools that somebody else has made: nothing outside is touched, nothing hangs, and each is named in one line."""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from advisor_logging import spool, sync
from tests.adapters.advisor_logging.test_sync import NOW, left, run_sync

__all__ = ["left"]


def test_a_spool_with_links_overwrites_nothing(left: Callable[..., Path], uri: str, tmp_path: Path) -> None:
    """Delivery writes files such as `status.json` and `requirements.txt` into the spool."""
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    facts = {"git_commit": "", "git_dirty": False, "git_diff": "x", "requirements": "hostile"}
    for name in ("requirements.txt", "git.diff", "status.json.new", "acknowledged.json.new", "lock", "run.json.new"):
        folder = left(f"with {name}", steps=3, at=tmp_path / "download")
        spool.write_json(folder / "reproduction.json", facts)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(mine)
        refused = run_sync(folder, "--tracking-uri", uri)
        assert (refused.exit_code, "damaged" in refused.stderr) == (1, True), name
        assert mine.read_text() == "mine", name
        assert folder.exists()


def test_pipes_devices_and_endless_files_in_a_spool(
    left: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "MAX_FILE_BYTES", 1 << 20)
    for name in ("000001.spool", "acknowledged.json", "status.json"):
        os.mkfifo(left(f"pipe {name}", steps=3) / name)
        (left(f"zero {name}", steps=3) / name).symlink_to("/dev/zero")
        with open(left(f"sparse {name}", steps=3) / name, "wb") as sparse:
            sparse.truncate((1 << 20) + 1)
    for folder in sync.find_spools([tmp_path / "spool"]):
        assert sync.inspect_spool(folder).state == "unreadable", folder.name


def test_a_spool_whose_name_is_a_path_is_unreadable(left: Callable[..., Path]) -> None:
    folder = left("elsewhere", steps=3, run_id="a" * 32, spool="x/../../../away")
    assert sync.inspect_spool(folder).state == "unreadable"


def raw_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IIB", len(payload), zlib.crc32(payload), kind) + payload


def raw_rows(names: object, numbers: Sequence[float], rows: int = 1) -> bytes:
    text = json.dumps(names).encode()
    return raw_frame(spool.STEPS, struct.pack("<IH", rows, len(text)) + text + struct.pack(f"<{len(numbers)}d", *numbers))


HOSTILE_FRAMES = {
    "unknown kind": raw_frame(7, b"{}"),
    "step nan": raw_rows(["m"], [math.nan, NOW, 1.0]),
    "time inf": raw_rows(["m"], [0.0, math.inf, 1.0]),
    "no names": raw_rows(None, [0.0, NOW]),
    "names of numbers": raw_rows([1, 2], [0.0, NOW, 1.0, 2.0]),
    "too short": raw_rows(["m", "k"], [0.0, NOW, 1.0]),
    "rows without end": raw_rows(["m"], [0.0, NOW, 1.0], 2**32 - 1),
    "event is a list": raw_frame(spool.EVENT, b"[1]"),
    "event is deep": raw_frame(spool.EVENT, b"[" * 100_000),
    "tags are a list": spool.encode_event({"tags": [1]}),
    "params are a text": spool.encode_event({"params": "x"}),
    "end is a text": spool.encode_event({"end": "x"}),
    "end without status": spool.encode_event({"end": {}}),
}


def test_any_frame_is_read_or_makes_a_spool_unreadable(left: Callable[..., Path]) -> None:
    for name, frame in HOSTILE_FRAMES.items():
        folder = left(name, steps=3)
        with open(folder / "000000.spool", "ab") as file:
            file.write(frame)
        assert sync.inspect_spool(folder).state in ("left", "unreadable"), name


def test_a_spool_with_hostile_frames_is_named_in_one_line(
    left: Callable[..., Path], uri: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sync, "MAX_RETRY_S", 0.0)
    for name in ("step nan", "names of numbers", "too short", "tags are a list", "end is a text"):
        with open(left(name, steps=3, at=tmp_path / "download", ended=False) / "000000.spool", "ab") as file:
            file.write(HOSTILE_FRAMES[name])
    done = run_sync(tmp_path / "download", "--tracking-uri", uri, "-q")
    assert (done.exit_code, done.exception if done.exit_code == 2 else None) == (1, None)
    lines = done.stderr.splitlines()
    assert all(line.startswith("advisor: ") for line in lines), lines
    assert len(lines) >= 4
