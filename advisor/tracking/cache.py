"""Points of runs that ended, kept on this machine, so that the next analysis asks the store only for what is new.

Each file holds the points of some runs, metric by metric, as plain numbers, and ends with an index. Files are written aside,
renamed and never changed. A run is found by a digest of all that its store says of it without being asked for its points: where
any of that changed, the run is read anew. What a file says is checked before it is believed, and one that will not do is deleted.
Nothing of a run is kept but its points and the names of its metrics.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from advisor.space import BoolArray, FloatArray
from advisor.tracking.collect import Collector, Columns, IntArray
from advisor.tracking.location import Location
from advisor.tracking.runs import Points

SETTING = "ADVISOR_CACHE"
"""Environment variable: a folder to keep points in, or "off"; default is the user's own folder for caches."""
MAX_BYTES = 2 * 2**30
"""Of all files; those that were not used for longest go first."""
MAX_FILES = 16
"""Of an experiment; more are joined into one."""
_NAME = "tuning-advisor"
_PREFIX, _SUFFIX, _UNFINISHED = "runs-", ".points", ".unfinished"
_ABANDONED_S = 3600
"""After which a file that was never finished is that of a process that was killed."""
_MAGIC = b"advisor points 1"
_END = 8 + 4 + len(_MAGIC)
"""Bytes after the index: its length, its checksum and the magic bytes again."""
_COLUMNS = 3
_BYTES_A_POINT = 8 * _COLUMNS


def key(*facts: object) -> str:
    """The digest of what a store says of a run; facts are texts, numbers, None, and lists of such."""
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


class Broken(Exception):  # noqa: N818 - a finding about a file, which is deleted, and no error of the program
    """A file is not as this module writes it."""


def of_experiment(location: Location, experiment: str) -> Cache:
    """What is kept of an experiment's runs; of a store only its address without credentials is used."""
    root = _root()
    name = hashlib.blake2b(f"{location.shown}\n{experiment}".encode(), digest_size=16).hexdigest()
    return Cache(None if root is None else root / name)


def _root() -> Path | None:
    """The folder of all that is kept; None where nothing is."""
    setting = os.environ.get(SETTING, "")
    if setting.lower() in ("off", "0", "no", "false"):
        return None
    if setting:
        return Path(setting).expanduser().absolute() / _NAME
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    with contextlib.suppress(RuntimeError):  # nobody's home
        base = base.expanduser()
        return base / _NAME if base.is_absolute() else None
    return None


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can put files into the folder."""
    if not hasattr(os, "geteuid"):
        return True
    info = folder.stat()
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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


class Cache:
    """The files of one experiment. Whatever is wrong with them, or with the disk, it is as if they were not there."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files: list[Path] = []
        self._keys: list[str | None] = []
        self._known = np.zeros(0, dtype=np.bool_)

    def fill(self, keys: Sequence[str | None], collector: Collector) -> BoolArray:
        """Add the points of runs that are kept to the collector; says which runs those are, shape (runs,).

        keys: of each run its `key`, None for one that may still change.
        """
        self._keys, self._known = list(keys), np.zeros(len(keys), dtype=np.bool_)
        wanted = {k: run for run, k in enumerate(keys) if k is not None}
        with contextlib.suppress(OSError):
            if self._folder is not None and self._folder.is_dir() and _is_ours(self._folder):
                self._files = sorted(self._folder.glob(f"{_PREFIX}*{_SUFFIX}"))
                for file in self._files:
                    self._known[_fill(file, wanted, collector)] = True
        return self._known.copy()

    def points(self, collector: Collector, *, worth: int, but: Sequence[int] = ()) -> dict[str, Points]:
        """All points of the collector, which is emptied; runs that were not kept yet are, if they have at least `worth` points.

        Where there are many files already, one with all runs replaces them. but: runs of which nothing is to be kept.
        """
        may = np.array([k is not None for k in self._keys], dtype=np.bool_)
        may[list(but)] = False
        fresh = may & ~self._known
        joined = len(self._files) >= MAX_FILES
        chosen = may if joined else fresh
        size = _BYTES_A_POINT * collector.count(chosen)
        if self._folder is None or collector.count(fresh) < worth or not _has_room(self._folder, size):
            return collector.points()
        writer = _Writer(self._folder, [k or "" for k in self._keys], chosen)
        try:
            points = collector.points(writer.add)
            if writer.finish() and joined:
                _delete(self._files)
        finally:
            writer.close()
        _trim(self._folder.parent)
        return points


def _has_room(folder: Path, size: int) -> bool:
    """Whether to write so many bytes: the folder, made if it is missing, is ours and its disk far from full."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return size <= MAX_BYTES and _is_ours(folder) and 4 * size <= shutil.disk_usage(folder).free
    except OSError:
        return False


# --- reading --------------------------------------------------------------------------------------------------------------------


def _fill(path: Path, wanted: dict[str, int], collector: Collector) -> list[int]:
    """Add the wanted runs of one file to the collector, and take them out of `wanted`; gives their numbers."""
    try:
        with _opened(path) as file:
            index = _index(file)
            runs = np.array([wanted.get(k, -1) for k in index.keys], dtype=np.int64)
            if not (runs >= 0).any():
                return []
            pieces = list(_pieces(file, index, runs))
    except (Broken, OSError, MemoryError):
        _delete([path])
        return []
    for metric, columns in pieces:
        collector.add(metric, *columns)
    with contextlib.suppress(OSError):
        os.utime(path)
    found = [k for k in index.keys if k in wanted]
    return [wanted.pop(k) for k in found]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file, which must be a plain one: no link, and nothing that waits to be written."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Broken
        yield file


def _index(file: BinaryIO) -> Index:
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
    if len(_MAGIC) + _BYTES_A_POINT * points + length + _END != size or len(sums) != len(metrics):
        raise Broken
    return Index(keys, metrics, counts, sums)


def _pieces(file: BinaryIO, index: Index, runs: IntArray) -> Iterator[tuple[str, Columns]]:
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


# --- writing --------------------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes one file; where that fails it stops, and there is no file."""

    def __init__(self, folder: Path, keys: list[str], chosen: BoolArray) -> None:
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
            handle, self._path = tempfile.mkstemp(dir=folder, prefix=_PREFIX, suffix=_UNFINISHED)
            self._file = os.fdopen(handle, "wb")
            self._put(_MAGIC)

    def add(self, metric: str, runs: IntArray, steps: IntArray, values: FloatArray, times: IntArray) -> None:
        """Write the chosen runs' points of a metric, which come by run."""
        if self._file is None:
            return
        keep = self._chosen[runs]
        columns = steps[keep].astype("<i8"), values[keep].astype("<f8"), times[keep].astype("<i8")
        checksum = 0
        for column in columns:
            checksum = zlib.crc32(column.data, checksum)
            self._put(column)
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
            os.replace(self._path, self._path.removesuffix(_UNFINISHED) + _SUFFIX)
        except OSError:
            return False
        self._file = None
        return True

    def close(self) -> None:
        """Delete the file if it was not finished."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            _delete([Path(self._path)])
            self._file = None

    def _put(self, data: Any) -> None:
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError:
                self.close()


def _trim(root: Path) -> None:
    """Delete what was not used for longest, down to `MAX_BYTES`, and what killed processes left unfinished."""
    kept = []
    for path in root.glob(f"*/{_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = path.lstat()
            if path.suffix == _SUFFIX:
                kept.append((info.st_mtime, info.st_size, path))
            elif path.suffix == _UNFINISHED and info.st_mtime < time.time() - _ABANDONED_S:
                path.unlink()
    size = sum(bytes_ for _, bytes_, _ in kept)
    for _, bytes_, path in sorted(kept):
        if size <= MAX_BYTES:
            break
        _delete([path])
        size -= bytes_


def _delete(paths: Iterable[Path]) -> None:
    """Delete files that may be gone already, or that somebody has open."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
