"""The spool: a run's points and events on local disk, appended by the trainer, read and acknowledged by the shipper.

A folder with `run.json` (what the run is), numbered segments of frames, `acknowledged.json` (how far the store has everything),
`status.json` (what the shipper last saw) and `lock` (held by the one shipper). Acknowledged segments become the compressed parts
of the run's sidecar (`sidecar`); `bound` keeps all of it within its share of the disk. A frame is length, CRC-32 and kind, then its
payload; a frame that a crash tore off is never read. Written with one unbuffered `write` a time, so that a killed process loses
nothing that it wrote, and a forked child has nothing to flush. What a power failure takes with it is not promised.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from advisor_logging.table import Row, Table, tables_of

SEGMENT_BYTES = 8 << 20
"""A new segment begins beyond this size; acknowledged segments make room for what comes."""
RESERVE_BYTES = 256 << 10
"""Room that is held on the disk and given up when it is full, for evaluations, tags and the end of the run."""
GONE = "*.delivered"
"""Folders that were spools and are being removed."""

STEPS, EVALUATION, EVENT = 0, 1, 2
"""Kinds of frames: rows that are to be windowed · rows kept as they are · a JSON object."""

_HEAD = struct.Struct("<IIB")
_SHAPE = struct.Struct("<IH")


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in the spool: a segment's number and an offset in bytes."""

    segment: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Everything before `position` is in the store, and, at and after it, every STEPS row of a step below `step`."""

    position: Position = Position()
    step: int = -1


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as read: its kind, its payload, where it starts and where the next one does."""

    kind: int
    payload: bytes
    start: Position
    end: Position

    def rows(self) -> list[Row]:
        """The rows of a STEPS or EVALUATION frame."""
        return _decode_rows(self.payload)

    def columns(self) -> tuple[array[float], array[float], dict[str, array[float]]]:
        """The same rows as columns of shape (rows,): steps, milliseconds, values by metric name."""
        names, width, flat = _decode_numbers(self.payload)
        return flat[::width], flat[1::width], {name: flat[i::width] for i, name in enumerate(names, start=2)}

    def event(self) -> dict[str, Any]:
        """The object of an EVENT frame."""
        return dict(json.loads(self.payload))


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), zlib.crc32(payload), kind) + payload


def encode_event(event: Mapping[str, Any]) -> bytes:
    """An event as a frame."""
    return _frame(EVENT, json.dumps(event).encode())


def encode_rows(kind: int, rows: Sequence[Row]) -> bytes:
    """Rows as frames: one for each stretch of rows that have the same metrics."""
    return b"".join(encode_table(kind, table) for table in tables_of(rows))


def encode_table(kind: int, table: Table) -> bytes:
    """A table as a frame, row by row."""
    names_json = json.dumps(list(table.columns)).encode()
    lines = zip(table.steps, table.times_ms, *table.columns.values(), strict=True)
    numbers = array("d", chain.from_iterable(lines))
    if sys.byteorder == "big":
        numbers.byteswap()
    return _frame(kind, _SHAPE.pack(len(table), len(names_json)) + names_json + numbers.tobytes())


def _decode_rows(payload: bytes) -> list[Row]:
    names, width, flat = _decode_numbers(payload)
    lines = (flat[i : i + width] for i in range(0, len(flat), width))
    return [(int(line[0]), int(line[1]), dict(zip(names, line[2:], strict=True))) for line in lines]


def _decode_numbers(payload: bytes) -> tuple[list[str], int, array[float]]:
    """Metric names, numbers in a row, and all rows' numbers one after another."""
    count, length = _SHAPE.unpack_from(payload)
    start = _SHAPE.size + length
    names: list[str] = json.loads(payload[_SHAPE.size : start])
    width = 2 + len(names)
    flat = array("d", payload[start : start + 8 * count * width])
    if sys.byteorder == "big":
        flat.byteswap()
    return names, width, flat


class SpoolWriter:
    """Appends frames to the spool in `folder`, which exists."""

    def __init__(self, folder: Path, segment_bytes: int | None = None) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes or SEGMENT_BYTES
        self._number = 0
        self._file = open(segment_path(folder, 0), "ab", buffering=0)  # noqa: SIM115 - held for the length of the run
        self._reserve = folder / "reserve"
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(bytes(RESERVE_BYTES))

    def append(self, frames: bytes, *, matters: bool = False) -> None:
        """Write whole frames. Raises OSError, for example when the disk is full; what was half written is taken back.

        For frames that `matter`, the reserve is given up before it comes to that.
        """
        try:
            if self._file.tell() > self._segment_bytes:
                self._next_segment()
            self._write(frames)
        except OSError:
            if not matters:
                raise
            self._reserve.unlink(missing_ok=True)
            self._next_segment()  # this one may have reached a limit of its own
            self._write(frames)

    def _write(self, frames: bytes) -> None:
        start = self._file.tell()
        try:
            written = self._file.write(frames)
            if written != len(frames):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._file.fileno(), start)
            self._file.seek(start)
            raise

    def _next_segment(self) -> None:
        following = open(segment_path(self._folder, self._number + 1), "ab", buffering=0)  # noqa: SIM115
        self._file.close()
        self._number, self._file = self._number + 1, following

    def close(self) -> None:
        """Close the segment."""
        self._file.close()


def read_frames(folder: Path, position: Position) -> Iterator[Frame]:
    """The whole frames from `position` to what is written so far."""
    while True:
        following = any(number > position.segment for number in segments(folder))
        # Asked before the file is read: once the next segment exists, this one grows no more.
        for frame in read_segment(folder, position):
            yield frame
            position = frame.end
        if not following:
            return
        position = Position(min(number for number in segments(folder) if number > position.segment))


def read_segment(folder: Path, position: Position) -> Iterator[Frame]:
    """The whole frames of one segment from `position` on; none where the segment is gone."""
    try:
        with open(segment_path(folder, position.segment), "rb") as file:
            file.seek(position.offset)
            data = file.read()
    except FileNotFoundError:
        return
    for kind, payload, length in _whole_frames(data):
        end = Position(position.segment, position.offset + length)
        yield Frame(kind, payload, position, end)
        position = end


def segments(folder: Path) -> list[int]:
    """The numbers of the segments that are there, ascending."""
    return sorted(int(path.stem) for path in folder.glob("*.spool"))


def _whole_frames(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Kind, payload and full length of each frame in `data`, up to the first that is torn."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum, kind = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        yield kind, payload, _HEAD.size + length
        at += _HEAD.size + length


def segment_path(folder: Path, number: int) -> Path:
    """Path of a segment."""
    return folder / f"{number:06d}.spool"


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replace the file at `path` in one stroke, so that a reader sees the old or the new content, never a part."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)


def remove(folder: Path) -> None:
    """Delete a spool that was delivered; never raises. `run.json` and then the folder's name say so, should this be cut off."""
    run = folder / "run.json"
    with contextlib.suppress(OSError, ValueError):
        write_json(run, {**read_json(run), "delivered": True})
    for path in folder.glob("*"):
        if path != run:
            with contextlib.suppress(OSError):
                path.unlink()
    if not folder.match(GONE):
        with contextlib.suppress(OSError):
            folder = folder.rename(f"{folder}{GONE[1:]}")
    shutil.rmtree(folder, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file at `path`; empty where there is no such file."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def read_acknowledged(folder: Path) -> Acknowledged:
    """How far the store has everything."""
    raw = read_json(folder / "acknowledged.json")
    return Acknowledged(Position(raw["segment"], raw["offset"]), raw["step"]) if raw else Acknowledged()


def acknowledge(folder: Path, done: Acknowledged) -> None:
    """Note how far the store has everything."""
    note = {"segment": done.position.segment, "offset": done.position.offset, "step": done.step}
    write_json(folder / "acknowledged.json", note, durable=True)


@dataclass(frozen=True, slots=True)
class Part:
    """An acknowledged segment in the form in which the sidecar will have it."""

    path: Path
    segment: int
    last_step: int
    """The largest step in it."""


def parts(folder: Path) -> list[Part]:
    """The parts that are there, oldest first."""
    found = []
    for path in sorted(folder.glob("*.part")):
        segment, _, last_step = path.stem.partition("-")
        found.append(Part(path, int(segment), int(last_step)))
    return found


def part_path(folder: Path, segment: int, last_step: int) -> Path:
    """Path of the part that a segment becomes; its name says what is missing once it is dropped."""
    return folder / f"{segment:06d}-{last_step}.part"


def drop_part(folder: Path, part: Part) -> None:
    """Do without a part, so that the sidecar begins after it."""
    part.path.unlink(missing_ok=True)
    note_dropped(folder, part.last_step)


def note_dropped(folder: Path, last_step: int) -> None:
    """Note that the sidecar lacks steps up to `last_step`."""
    write_json(folder / "dropped.json", {"last_step": max(last_step, read_dropped(folder))})


def read_dropped(folder: Path) -> int:
    """The largest step that the sidecar lacks; -1 where it lacks none."""
    return int(read_json(folder / "dropped.json").get("last_step", -1))
