"""The spool: a run's points and events on local disk, appended by the trainer, read and acknowledged by the shipper.

A folder with `run.json` (what the run is), numbered segments of frames, `acknowledged.json` (how far the store has everything),
`status.json` (what the shipper last saw) and `lock` (held by the one shipper). A frame is length, CRC-32 and kind, then its
payload; a frame that a crash tore off is never read. Written with one unbuffered `write` a time, so that a killed process loses
nothing that it wrote, and a forked child has nothing to flush. What a power failure takes with it is not promised.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

SEGMENT_BYTES = 8 << 20
"""A new segment begins beyond this size; acknowledged segments are deleted."""

STEPS, EVALUATION, EVENT = 0, 1, 2
"""Kinds of frames: rows that are to be windowed · rows kept as they are · a JSON object."""

_HEAD = struct.Struct("<IIB")
_SHAPE = struct.Struct("<IH")

Row = tuple[int, int, Mapping[str, float]]
"""Step, wall clock in milliseconds, values by metric name."""


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

    def event(self) -> dict[str, Any]:
        """The object of an EVENT frame."""
        return dict(json.loads(self.payload))


def _frame(kind: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), zlib.crc32(payload), kind) + payload


def encode_event(event: Mapping[str, Any]) -> bytes:
    """An event as a frame."""
    return _frame(EVENT, json.dumps(event).encode())


def encode_rows(kind: int, rows: Sequence[Row]) -> bytes:
    """Rows as frames: one for each stretch of rows that have the same metrics, so that no value needs a mark for "missing"."""
    frames = []
    for names, group in groupby(rows, key=lambda row: tuple(row[2])):
        same = list(group)
        flat = [x for step, time_ms, values in same for x in (step, time_ms, *values.values())]
        names_json = json.dumps(names).encode()
        head = _SHAPE.pack(len(same), len(names_json)) + names_json
        frames.append(_frame(kind, head + struct.pack(f"<{len(flat)}d", *flat)))
    return b"".join(frames)


def _decode_rows(payload: bytes) -> list[Row]:
    count, length = _SHAPE.unpack_from(payload)
    start = _SHAPE.size + length
    names = json.loads(payload[_SHAPE.size : start])
    width = 2 + len(names)
    flat = struct.unpack_from(f"<{count * width}d", payload, start)
    lines = (flat[i : i + width] for i in range(0, len(flat), width))
    return [(int(line[0]), int(line[1]), dict(zip(names, line[2:], strict=True))) for line in lines]


class SpoolWriter:
    """Appends frames to the spool in `folder`, which exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._file = open(segment_path(folder, 0), "ab", buffering=0)  # noqa: SIM115 - held for the length of the run

    def append(self, frames: bytes) -> None:
        """Write whole frames. Raises OSError, for example when the disk is full; what was half written is taken back."""
        if self._file.tell() > SEGMENT_BYTES:
            self._file.close()
            self._number += 1
            self._file = open(segment_path(self._folder, self._number), "ab", buffering=0)  # noqa: SIM115
        start = self._file.tell()
        try:
            written = self._file.write(frames)
            if written != len(frames):
                raise OSError(f"only {written} of {len(frames)} bytes could be written")
        except OSError:
            os.ftruncate(self._file.fileno(), start)
            self._file.seek(start)
            raise

    def close(self) -> None:
        """Close the segment."""
        self._file.close()


def read_frames(folder: Path, position: Position) -> Iterator[Frame]:
    """The whole frames from `position` to what is written so far."""
    while True:
        path = segment_path(folder, position.segment)
        following = segment_path(folder, position.segment + 1).exists()
        # Asked before the file is read: once the next segment exists, this one grows no more.
        try:
            with open(path, "rb") as file:
                file.seek(position.offset)
                data = file.read()
        except FileNotFoundError:
            return
        for kind, payload, length in _whole_frames(data):
            end = Position(position.segment, position.offset + length)
            yield Frame(kind, payload, position, end)
            position = end
        if not following:
            return
        position = Position(position.segment + 1)


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
    """Note how far the store has everything, and drop the segments before it."""
    note = {"segment": done.position.segment, "offset": done.position.offset, "step": done.step}
    write_json(folder / "acknowledged.json", note, durable=True)
    number = done.position.segment - 1
    while number >= 0 and segment_path(folder, number).exists():
        segment_path(folder, number).unlink()
        number -= 1
