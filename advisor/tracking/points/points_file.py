"""Files of points: what the cache keeps of some runs, metric by metric, as plain numbers, with an index at the end.

They are written aside, renamed and never changed. What one says is checked before it is believed.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from advisor.model.space import BoolArray, FloatArray
from advisor.system.atomic import hold
from advisor.system.spill import portions
from advisor.tracking.points.collect import Columns, IntArray

SUFFIX, UNFINISHED = ".points", ".unfinished"
_MAGIC = b"advisor points 1"
_END = 8 + 4 + len(_MAGIC)
"""Bytes after the index: its length, its checksum and the magic bytes again."""
_COLUMNS = 3
BYTES_A_POINT = 8 * _COLUMNS


class Broken(Exception):  # noqa: N818 - a finding about a file, which is deleted, and no error of the program
    """A file is not as this module writes it."""


@dataclass(frozen=True, slots=True)
class Index:
    """What a file holds."""

    keys: list[str]
    """Of its runs."""
    metrics: list[str]
    counts: IntArray
    """Points of each run, shape (metrics, runs)."""
    sums: list[int]
    """Checksum of each metric's columns."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, which must be a plain one: no link, and nothing that waits to be written."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Broken
        yield file


def read_index(file: BinaryIO) -> Index:
    """The checked index of a file. Raises Broken."""
    size = os.fstat(file.fileno()).st_size
    if size < len(_MAGIC) + _END or file.read(len(_MAGIC)) != _MAGIC:
        raise Broken
    file.seek(size - _END)
    end = file.read(_END)
    length, checksum = int.from_bytes(end[:8], "little"), int.from_bytes(end[8:12], "little")
    if end[12:] != _MAGIC or length > size - len(_MAGIC) - _END:
        raise Broken
    file.seek(size - _END - length)
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise Broken
    try:
        told = json.loads(text)
        keys, metrics, sums = told["keys"], told["metrics"], told["sums"]
        counts = np.array(told["counts"], dtype=np.int64).reshape(len(metrics), len(keys))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise Broken from None
    if not all(isinstance(text, str) for text in (*keys, *metrics)) or len({*keys}) < len(keys) or (counts < 0).any():
        raise Broken
    points = sum(map(int, counts.ravel()))  # as Python's integers, which no file makes overflow
    if len(_MAGIC) + BYTES_A_POINT * points + length + _END != size or len(sums) != len(metrics):
        raise Broken
    return Index(keys, metrics, counts, sums)


def pieces(file: BinaryIO, index: Index, runs: IntArray) -> Iterator[tuple[str, Columns]]:
    """(metric, runs, steps, values, times) of the runs in a file that have a number in `runs`, others have -1. Raises Broken."""
    file.seek(len(_MAGIC))
    for metric, counts, checksum in zip(index.metrics, index.counts, index.sums, strict=True):
        points = int(counts.sum())
        data = np.fromfile(file, dtype="<i8", count=_COLUMNS * points)
        if len(data) != _COLUMNS * points or zlib.crc32(data.data) != checksum:
            raise Broken
        steps, values, times = (data[i * points : (i + 1) * points] for i in range(_COLUMNS))
        of_run = np.repeat(runs, counts)
        if (runs < 0).any():
            keep = of_run >= 0
            of_run, steps, values, times = of_run[keep], steps[keep], values[keep], times[keep]
        if len(of_run):
            yield metric, (of_run, steps, values.view("<f8"), times)


class Writer:
    """Writes one file; where that fails it stops, and there is no file."""

    def __init__(self, folder: Path, prefix: str, keys: list[str], chosen: BoolArray) -> None:
        self._folder, self._chosen = folder, chosen
        self._runs = np.flatnonzero(chosen)
        self._index: dict[str, list[Any]] = {
            "keys": [keys[i] for i in self._runs],
            "metrics": [],
            "counts": [],
            "sums": [],
        }
        self._file: BinaryIO | None = None
        self._path = ""
        with contextlib.suppress(OSError):
            handle, self._path = tempfile.mkstemp(dir=folder, prefix=prefix, suffix=UNFINISHED)
            hold(handle)  # lest it be taken for one that a killed process left
            self._file = os.fdopen(handle, "wb")
            self._put(_MAGIC)

    def add(self, metric: str, runs: IntArray, steps: IntArray, values: FloatArray, times: IntArray) -> None:
        """Write the chosen runs' points of a metric, which come by run."""
        if self._file is None:
            return
        keep = self._chosen[runs]
        checksum = 0
        for column, dtype in ((steps, "<i8"), (values, "<f8"), (times, "<i8")):
            for part in portions(runs):
                chosen = column[part][keep[part]].astype(dtype)
                checksum = zlib.crc32(chosen.data, checksum)
                self._put(chosen)
        counts = np.bincount(runs[keep], minlength=len(self._chosen))[self._runs]
        for name, value in (("metrics", metric), ("counts", counts.tolist()), ("sums", checksum)):
            self._index[name].append(value)

    def finish(self) -> bool:
        """End the file and give it its name; whether it is there."""
        text = json.dumps(self._index).encode()
        self._put(text + len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(4, "little") + _MAGIC)
        if self._file is None:
            return False
        try:
            self._file.close()
            os.replace(self._path, self._path.removesuffix(UNFINISHED) + SUFFIX)
        except OSError:
            return False
        self._file = None
        return True

    def close(self) -> None:
        """Delete the file if it was not finished."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                Path(self._path).unlink()
            self._file = None

    def _put(self, data: Any) -> None:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError:
                self.close()
