"""The spool: a folder on local disk that holds a run's metric values and events until MLflow has them.

It holds `run.json` (description of the run), numbered segments of frames, `acknowledged.json` (position up to which MLflow has all
data), `status.json` (state of the shipper process) and `lock`. Acknowledged segments become compressed parts of the `sidecar`.

A frame consists of length, CRC-32, kind and payload; a reader ignores a truncated frame at the end of a segment. Each write is
one unbuffered system call, so a killed process loses no written data, and a forked child inherits no unwritten data.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import math
import os
import re
import shutil
import struct
import sys
import tempfile
import time
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from advisor_logging.table import MetricRow, MetricTable, rows_to_tables

MAX_SEGMENT_BYTES = 8 << 20
"""Bytes beyond which a new segment begins. Only whole segments can be deleted to free disk space."""
RESERVED_DISK_BYTES = 256 << 10
"""Bytes of disk space reserved for evaluations, tags and the end of the run; this space is released when the disk is full."""
DELIVERED_SPOOL_PATTERN = "*.delivered"
"""File name pattern of spool folders that are fully delivered and are being deleted."""

STEPS, EVALUATION, EVENT = 0, 1, 2
"""Kinds of frames: rows of training steps (sent as windows), rows of evaluations (sent unchanged), and JSON objects."""

_FRAME_HEADER = struct.Struct("<IIB")
_TABLE_SHAPE = struct.Struct("<IH")


def user_name() -> str:
    """Return the user's name; "unknown" if the system has no name for the user id, as in some containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown"


def user_id() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else re.sub(r"\W", "_", user_name())


def working_directory() -> str:
    """Return the working directory; if it has been deleted, return the file system's root folder."""
    try:
        return os.getcwd()
    except OSError:
        return os.path.abspath(os.sep)


def default_spool_folders() -> list[Path]:
    """Return the folders that may contain this user's spools, in order of preference."""
    folders = [Path(working_directory(), text)] if (text := os.environ.get("ADVISOR_SPOOL")) else []
    with contextlib.suppress(RuntimeError):  # no home folder
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folders.append(Path(state) / "tuning-advisor" / "spool")
    return [*folders, Path(tempfile.gettempdir()) / f"tuning-advisor-{user_id()}"]


@dataclass(frozen=True, slots=True, order=True)
class SpoolPosition:
    """A position in the spool: number of the segment and byte offset in it."""

    segment: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The store has all frames before `position`, and all training steps after `position` whose number is below `step`."""

    position: SpoolPosition = SpoolPosition()
    step: int = -1


@dataclass(frozen=True, slots=True)
class SpoolFrame:
    """One record in the spool; `start` is its position, and `end` is the position of the next frame."""

    kind: int
    payload: bytes
    start: SpoolPosition
    end: SpoolPosition

    def rows(self) -> list[MetricRow]:
        names, width, flat = _decode_numbers(self.payload)
        row_values = (flat[i : i + width] for i in range(0, len(flat), width))
        return [(int(line[0]), int(line[1]), dict(zip(names, line[2:], strict=True))) for line in row_values]

    def columns(self) -> tuple[array[float], array[float], dict[str, array[float]]]:
        """Return (steps, times in milliseconds since 1970, values by metric name); each array has shape (rows,)."""
        names, width, flat = _decode_numbers(self.payload)
        return flat[::width], flat[1::width], {name: flat[i::width] for i, name in enumerate(names, start=2)}

    def event(self) -> dict[str, Any]:
        return dict(json.loads(self.payload))


def _encode_frame(kind: int, payload: bytes) -> bytes:
    return _FRAME_HEADER.pack(len(payload), zlib.crc32(payload), kind) + payload


def encode_event(event: Mapping[str, Any]) -> bytes:
    return _encode_frame(EVENT, json.dumps(event).encode())


def encode_rows(kind: int, rows: Sequence[MetricRow]) -> bytes:
    """Encode rows as frames: one frame for each sequence of consecutive rows that have the same metrics."""
    return b"".join(encode_table(kind, table) for table in rows_to_tables(rows))


def encode_table(kind: int, table: MetricTable) -> bytes:
    names_json = json.dumps(list(table.columns)).encode()
    row_values = zip(table.steps, table.times_ms, *table.columns.values(), strict=True)
    numbers = array("d", chain.from_iterable(row_values))
    if sys.byteorder == "big":
        numbers.byteswap()
    return _encode_frame(kind, _TABLE_SHAPE.pack(len(table), len(names_json)) + names_json + numbers.tobytes())


def _decode_numbers(payload: bytes) -> tuple[list[str], int, array[float]]:
    """Return (metric names, number of values per row, all values as a flat array in row order)."""
    count, names_bytes = _TABLE_SHAPE.unpack_from(payload)
    values_start = _TABLE_SHAPE.size + names_bytes
    names: list[str] = json.loads(payload[_TABLE_SHAPE.size : values_start])
    width = 2 + len(names)
    values = array("d", payload[values_start : values_start + 8 * count * width])
    if sys.byteorder == "big":
        values.byteswap()
    return names, width, values


class SpoolWriter:
    """Appends frames to the spool in the existing `folder`."""

    def __init__(self, folder: Path, segment_bytes: int | None = None) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes or MAX_SEGMENT_BYTES
        self._number = 0
        self._torn_at: int | None = None
        self._file = open(segment_path(folder, 0), "ab", buffering=0)  # noqa: SIM115 - open until the end of the run
        self._reserve = folder / "reserve"
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(bytes(RESERVED_DISK_BYTES))

    def append(self, frames: bytes, *, critical: bool = False) -> None:
        """Raises OSError, for example if the disk is full, after removing a partial frame. `critical` frames use the reserved
        space."""
        try:
            if self._file.tell() > self._segment_bytes:
                self._next_segment()
            self._write_completely(frames)
        except OSError:
            if not critical:
                raise
            self._reserve.unlink(missing_ok=True)
            if self._file.tell():
                self._next_segment()  # the current segment file may have reached the file system's maximum file size
            self._write_completely(frames)

    def _write_completely(self, frames: bytes) -> None:
        if self._torn_at is not None:
            self._remove_partial_frame(self._torn_at)
        start = self._file.tell()
        try:
            written = self._file.write(frames)
            if written != len(frames):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._remove_partial_frame(start)
            raise

    def _remove_partial_frame(self, start: int) -> None:
        """Remove a partial frame, at which readers would stop. If this fails, the next write tries again."""
        self._torn_at = start
        os.ftruncate(self._file.fileno(), start)
        self._file.seek(start)
        self._torn_at = None

    def _next_segment(self) -> None:
        next_file = open(segment_path(self._folder, self._number + 1), "ab", buffering=0)  # noqa: SIM115
        self._file.close()
        self._number, self._file, self._torn_at = self._number + 1, next_file, None

    def close(self) -> None:
        self._file.close()


def read_frames(folder: Path, position: SpoolPosition) -> Iterator[SpoolFrame]:
    """Yield the complete frames from `position` to the current end of the spool."""
    while True:
        has_next_segment = any(number > position.segment for number in segment_numbers(folder))
        # Look for the next segment before reading the current one: once the next segment exists, the current one no longer
        # grows.
        for frame in read_segment(folder, position):
            yield frame
            position = frame.end
        if not has_next_segment:
            return
        position = SpoolPosition(min(number for number in segment_numbers(folder) if number > position.segment))


def read_segment(folder: Path, position: SpoolPosition) -> Iterator[SpoolFrame]:
    """Yield the complete frames of one segment, starting at `position`; if the segment was deleted, yield nothing."""
    try:
        with open(segment_path(folder, position.segment), "rb") as file:
            file.seek(position.offset)
            data = file.read()
    except FileNotFoundError:
        return
    for kind, payload, length in _complete_frames(data):
        end = SpoolPosition(position.segment, position.offset + length)
        yield SpoolFrame(kind, payload, position, end)
        position = end


def segment_numbers(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.spool"))


def _complete_frames(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield the kind, the payload and the full length of each frame in `data`; stop at a truncated frame."""
    at = 0
    while at + _FRAME_HEADER.size <= len(data):
        length, checksum, kind = _FRAME_HEADER.unpack_from(data, at)
        payload = data[at + _FRAME_HEADER.size : at + _FRAME_HEADER.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield kind, payload, _FRAME_HEADER.size + length
        at += _FRAME_HEADER.size + length


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.spool"


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replace a JSON file atomically, so that readers see either the old or the new content."""
    temporary_path = path.with_name(path.name + ".new")
    with open(temporary_path, "w", encoding="utf-8") as file:
        json.dump(value, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary_path, path)


def remove_spool(folder: Path) -> None:
    """Delete a delivered spool; never raises. `run.json` and the folder's name mark the spool as delivered in case
    the deletion is interrupted."""
    run = folder / "run.json"
    with contextlib.suppress(OSError, ValueError):
        write_json(run, {**read_json_object(run), "delivered": True})
    for path in folder.glob("*"):
        if path != run:
            with contextlib.suppress(OSError):
                path.unlink()
    if not folder.match(DELIVERED_SPOOL_PATTERN):
        with contextlib.suppress(OSError):
            folder = folder.rename(f"{folder}{DELIVERED_SPOOL_PATTERN[1:]}")
    shutil.rmtree(folder, ignore_errors=True)


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty dict if the file does not exist."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def read_acknowledgement(folder: Path) -> Acknowledgement:
    raw = read_json_object(folder / "acknowledged.json")
    return Acknowledgement(SpoolPosition(raw["segment"], raw["offset"]), raw["step"]) if raw else Acknowledgement()


def write_acknowledgement(folder: Path, acknowledgement: Acknowledgement) -> None:
    position, step = acknowledgement.position, acknowledgement.step
    fields = {"segment": position.segment, "offset": position.offset, "step": step}
    write_json(folder / "acknowledged.json", fields, durable=True)


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """An acknowledged segment that was converted to the format of the sidecar table."""

    path: Path
    segment: int
    last_step: int


def list_segment_parts(folder: Path) -> list[SegmentPart]:
    """Return the sidecar parts, oldest first."""
    parts = []
    for path in sorted(folder.glob("*.part")):
        segment, _, last_step = path.stem.partition("-")
        parts.append(SegmentPart(path, int(segment), int(last_step)))
    return parts


def segment_part_path(folder: Path, segment: int, last_step: int) -> Path:
    return folder / f"{segment:06d}-{last_step}.part"


def delete_segment_part(folder: Path, part: SegmentPart) -> None:
    """The sidecar of the run then starts after the last step of the deleted part."""
    part.path.unlink(missing_ok=True)
    record_dropped_steps(folder, part.last_step)


def record_dropped_steps(folder: Path, last_step: int) -> None:
    write_json(folder / "dropped.json", {"last_step": max(last_step, last_dropped_step(folder))})


def last_dropped_step(folder: Path) -> int:
    """Return the last training step that is missing from the sidecar; -1 if no step is missing."""
    return int(read_json_object(folder / "dropped.json").get("last_step", -1))


MAX_BACKLOG_BYTES = 64 << 20
"""Maximum bytes of the frames that wait in memory to be written to disk; points in further frames are lost."""
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
        self.last_error: OSError | None = None
        """Error of the last attempt to write frames to disk; None if no attempt has failed."""
        self.dropped_points = 0
        """Number of metric points lost because the waiting frames reached their memory limit."""

    @property
    def points(self) -> int:
        return sum(one.points for one in self._frames)

    def append(self, frame: bytes, points: int = 0, *, critical: bool = False) -> bool:
        """Write a frame with `points` points; return whether it is on disk. A `critical` frame may overtake waiting frames."""
        self.retry()
        if not self._frames or (critical and not any(one.critical for one in self._frames)):
            try:
                self._spool.append(frame, critical=critical)
                return True
            except OSError as error:
                self.last_error = error
        if self._size + len(frame) > MAX_BACKLOG_BYTES and not critical:
            self.dropped_points += points
        else:
            self._frames.append(_WaitingFrame(frame, points, critical))
            self._size += len(frame)
        return False

    def retry(self, *, at_once: bool = False) -> bool:
        """Write the waiting frames, at most every `WRITE_RETRY_S` seconds. Return whether all frames are on disk."""
        if self._frames and (at_once or time.monotonic() - self._tried_at >= WRITE_RETRY_S):
            self._tried_at = time.monotonic()
            try:
                while self._frames:
                    self._spool.append(self._frames[0].frame, critical=self._frames[0].critical)
                    self._size -= len(self._frames.popleft().frame)
            except OSError as error:
                self.last_error = error
        return not self._frames

    def drop_waiting_frames(self) -> int:
        lost_points = self.points
        self._frames.clear()
        self._size = 0
        return lost_points
