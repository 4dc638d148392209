"""Caches the metric points of finished runs on local disk, by a digest of all other data of the run. Damaged files and disk
errors are harmless: their runs are read from the store. Each analysis writes one immutable file with its new runs, in Arrow's
IPC format: their keys in the metadata of the schema, and record batches of one metric each, with its name and a checksum as
metadata."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np
import platformdirs

from advisor.model.space import BoolArray, FloatArray
from advisor.tracking.points.collect import IntArray, PointCollector, PointColumns
from advisor.tracking.runs import Points
from advisor.tracking.stores.location import StoreLocation

if TYPE_CHECKING:
    import pyarrow as pa

CACHE_FOLDER_VARIABLE = "ADVISOR_CACHE"
"""Environment variable: the cache folder, by default in the user's cache folder, or "off" for no cache."""
MAX_BYTES = 2 * 2**30
"""Maximum total bytes of all cache files; beyond it, the least recently used files are deleted."""
MAX_FILES = 16
"""Maximum number of cache files per experiment; more are merged into one."""
_CACHE_FOLDER_NAME = "tuning-advisor"
_FILE_PREFIX, _FILE_SUFFIX, _UNFINISHED_SUFFIX = "runs-", ".arrow", ".unfinished"
_MAX_UNFINISHED_AGE_S = 3600
"""Maximum age of an incomplete cache file, in seconds; the process that wrote an older one was killed."""
_MAX_POINTS_IN_BATCH = 1_000_000
_BYTES_PER_POINT = 32


def run_digest(*facts: object) -> str:
    """Return a digest of `facts`, the data of a run in the store: texts, numbers, None, and lists of these values."""
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def cache_of_experiment(location: StoreLocation, experiment: str) -> PointCache:
    """Return the cache for an experiment's points. Stores whose URIs differ only in credentials share their cache."""
    root_folder = _root_folder()
    name = hashlib.blake2b(f"{location.display}\n{experiment}".encode(), digest_size=16).hexdigest()
    return PointCache(None if root_folder is None else root_folder / name)


def _root_folder() -> Path | None:
    setting = os.environ.get(CACHE_FOLDER_VARIABLE, "")
    if setting.lower() in ("off", "0", "no", "false"):
        return None
    try:
        own_folder = Path(setting).expanduser().absolute() / _CACHE_FOLDER_NAME if setting else None
        folder = own_folder or platformdirs.user_cache_path(_CACHE_FOLDER_NAME, False)
    except RuntimeError:  # the user has no home folder, so nothing is cached
        return None
    return folder if folder.is_absolute() else None


class PointCache:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder  # None if caching is disabled
        self._files: list[Path] = []
        self._keys: list[str | None] = []
        self._known = np.zeros(0, dtype=np.bool_)

    def load(self, keys: Sequence[str | None], collector: PointCollector) -> BoolArray:
        """Add cached points to the collector; return a mask of their runs, shape (runs,). keys: `run_digest` or None."""
        self._keys, self._known = list(keys), np.zeros(len(keys), dtype=np.bool_)
        runs_by_key = {k: run for run, k in enumerate(keys) if k is not None}
        with contextlib.suppress(OSError):
            if self._folder is not None and self._folder.is_dir() and _is_private(self._folder):
                self._files = sorted(self._folder.glob(f"{_FILE_PREFIX}*{_FILE_SUFFIX}"))
                for file in self._files:
                    self._known[_load_file(file, runs_by_key, collector)] = True
        return self._known.copy()

    def save(self, collector: PointCollector, *, min_points: int, except_runs: Sequence[int] = ()) -> dict[str, Points]:
        """Remove all points from the collector and return them; cache the new runs, except `except_runs`, if they have at least
        `min_points` points together. If there are `MAX_FILES` cache files, merge them into one."""
        is_cacheable = np.array([k is not None for k in self._keys], dtype=np.bool_)
        is_cacheable[list(except_runs)] = False
        new = is_cacheable & ~self._known
        must_merge = len(self._files) >= MAX_FILES
        is_written = is_cacheable if must_merge else new
        if self._folder is None or collector.count(new) < min_points:
            return collector.points()
        if not _prepare_folder(self._folder, _BYTES_PER_POINT * collector.count(is_written)):
            return collector.points()
        with _CacheFileWriter(self._folder, self._keys, is_written) as writer:
            points = collector.points(writer.add)
        if writer.complete and must_merge:
            _delete_files(self._files)
        _delete_old_files(self._folder.parent)
        return points


def _is_private(folder: Path) -> bool:
    if not hasattr(os, "geteuid"):
        return True
    info = folder.stat()
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _prepare_folder(folder: Path, size: int) -> bool:
    """Create the folder if needed. Return whether it is private and its disk has room for `size` bytes."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return size <= MAX_BYTES and _is_private(folder) and 4 * size <= shutil.disk_usage(folder).free
    except OSError:
        return False


def _delete_old_files(root: Path) -> None:
    """Delete abandoned cache files and old formats, and the least recently used files beyond `MAX_BYTES`."""
    files = []
    for path in root.glob(f"*/{_FILE_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = path.lstat()
            if path.suffix == _FILE_SUFFIX:
                files.append((info.st_mtime, info.st_size, path))
            elif info.st_mtime < time.time() - _MAX_UNFINISHED_AGE_S:
                path.unlink()
    size = sum(bytes_ for _, bytes_, _ in files)
    for _, bytes_, path in sorted(files):
        if size <= MAX_BYTES:
            break
        _delete_files([path])
        size -= bytes_


def _delete_files(paths: Iterable[Path]) -> None:
    """Delete files, except missing ones and those that a process on Windows has open."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _load_file(path: Path, wanted: dict[str, int], collector: PointCollector) -> list[int]:
    """Add the points of the `wanted` runs (by cache key) to the collector; remove these runs from `wanted`, and return them."""
    # A separate collector is used, because no point may be used before the whole file has been checked.
    file_points = PointCollector()
    try:
        with path.open("rb") as file:
            keys, batches = _read_file(file)
            runs = np.array([wanted.get(k, -1) for k in keys], dtype=np.int64)
            if not (runs >= 0).any():
                return []
            for metric, columns in batches:
                of_run = runs[columns[0]]
                is_wanted = of_run >= 0
                file_points.add(metric, of_run[is_wanted], columns[1][is_wanted], columns[2][is_wanted], columns[3][is_wanted])
    except (OSError, ValueError, KeyError, TypeError, IndexError, MemoryError):  # Arrow raises subclasses of ValueError
        _delete_files([path])
        return []
    collector.add_all(file_points)
    with contextlib.suppress(OSError):
        os.utime(path)
    return [wanted.pop(k) for k in keys if k in wanted]


def _read_file(file: Any) -> tuple[list[str], Iterator[tuple[str, PointColumns]]]:
    """Return (cache keys of the runs, iterator over (metric, points)). Raises ValueError if the file is damaged."""
    import pyarrow as pa

    reader = pa.ipc.open_file(file)
    text = (reader.schema.metadata or {})[b"keys"]
    keys = json.loads(text)
    if len(set(keys)) < len(keys):
        raise ValueError("a run occurs twice")

    def batches() -> Iterator[tuple[str, PointColumns]]:
        for i in range(reader.num_record_batches):
            batch, metadata = reader.get_batch_with_custom_metadata(i)
            columns = [column.to_numpy() for column in batch.columns]
            if int(metadata[b"crc32"]) != _checksum(text, metadata[b"metric"], columns):
                raise ValueError("wrong checksum")
            yield metadata[b"metric"].decode(), (columns[0], columns[1], columns[2], columns[3])

    return keys, batches()


def _checksum(keys: bytes, metric: bytes, columns: Sequence[Any]) -> int:
    checksum = zlib.crc32(metric, zlib.crc32(keys))
    for column in columns:
        checksum = zlib.crc32(np.ascontiguousarray(column).data, checksum)
    return checksum


class _CacheFileWriter:
    """Writes one cache file. At the first disk error, writing stops without an exception."""

    def __init__(self, folder: Path, keys: Sequence[str | None], cached_runs: BoolArray) -> None:
        self._folder, self._chosen = folder, cached_runs
        self._number = np.cumsum(cached_runs) - 1
        self._keys = json.dumps([k for k, wanted in zip(keys, cached_runs, strict=True) if wanted]).encode()
        self.complete = False
        """Whether the complete file has been written."""

    def __enter__(self) -> _CacheFileWriter:
        import pyarrow as pa

        names = {"run": pa.int64(), "step": pa.int64(), "value": pa.float64(), "time_ms": pa.int64()}
        self._schema = pa.schema(list(names.items()), metadata={"keys": self._keys})
        self._stack = contextlib.ExitStack()
        self._failed = False
        with self._note_failure():
            file = NamedTemporaryFile(dir=self._folder, prefix=_FILE_PREFIX, suffix=_UNFINISHED_SUFFIX, delete=False)
            self._path = Path(file.name)
            self._stack.callback(self._path.unlink, missing_ok=True)
            self._file = self._stack.enter_context(file)
            self._arrow: pa.RecordBatchFileWriter = pa.ipc.new_file(file, self._schema)
        return self

    def add(self, metric: str, runs: IntArray, steps: IntArray, values: FloatArray, times: IntArray) -> None:
        import pyarrow as pa

        for start in range(0, len(runs), _MAX_POINTS_IN_BATCH):
            point_slice = slice(start, start + _MAX_POINTS_IN_BATCH)
            is_written = self._chosen[runs[point_slice]]
            columns = [c[point_slice][is_written] for c in (runs, steps, values, times)]
            columns[0] = self._number[columns[0]]
            if self._failed or not len(columns[0]):
                continue
            metadata = {"metric": metric, "crc32": str(_checksum(self._keys, metric.encode(), columns))}
            with self._note_failure():
                self._arrow.write_batch(pa.record_batch(columns, schema=self._schema), custom_metadata=metadata)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if not self._failed and error is None:
            with self._note_failure():
                self._arrow.close()
                self._file.close()
                self._path.replace(self._path.with_suffix(_FILE_SUFFIX))
                self.complete = True
        with contextlib.suppress(OSError):
            self._stack.close()

    @contextlib.contextmanager
    def _note_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._failed = True
