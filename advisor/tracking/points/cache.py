"""Points of runs that ended, kept on this machine, so that the next analysis asks the store only for what is new.

A run is found by a digest of all that its store says of it without being asked for its points: where any of that changed, the run
is read anew. Nothing of a run is kept but its points and the names of its metrics.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from advisor.model.space import BoolArray
from advisor.system.atomic import is_held
from advisor.tracking.points.collect import Collector
from advisor.tracking.points.points_file import (
    BYTES_A_POINT,
    SUFFIX,
    UNFINISHED,
    Broken,
    Writer,
    opened,
    pieces,
    read_index,
)
from advisor.tracking.runs import Points
from advisor.tracking.stores.location import Location

SETTING = "ADVISOR_CACHE"
"""Environment variable: a folder to keep points in, or "off"; default is the user's own folder for caches."""
MAX_BYTES = 2 * 2**30
"""Of all files; those that were not used for longest go first."""
MAX_FILES = 16
"""Of an experiment; more are joined into one."""
_NAME = "tuning-advisor"
_PREFIX = "runs-"
_ABANDONED_S = 3600
"""After which a file that was never finished is that of a process that was killed, where no lock tells."""


def key(*facts: object) -> str:
    """The digest of what a store says of a run; facts are texts, numbers, None, and lists of such."""
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


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
    if sys.platform == "win32":
        default = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        default = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = Path(setting).expanduser().absolute() if setting else Path(default).expanduser()
    except RuntimeError:  # nobody's home
        return None
    return folder / _NAME if folder.is_absolute() else None


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can put files into the folder."""
    if not hasattr(os, "geteuid"):
        return True
    info = folder.stat()
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


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
                self._files = sorted(self._folder.glob(f"{_PREFIX}*{SUFFIX}"))
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
        size = BYTES_A_POINT * collector.count(chosen)
        if self._folder is None or collector.count(fresh) < worth or not _has_room(self._folder, size):
            return collector.points()
        writer = Writer(self._folder, _PREFIX, [k or "" for k in self._keys], chosen)
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


def _fill(path: Path, wanted: dict[str, int], collector: Collector) -> list[int]:
    """Add the wanted runs of one file to the collector, and take them out of `wanted`; gives their numbers."""
    found = Collector()  # of its own, as nothing is believed before all was checked
    try:
        with opened(path) as file:
            index = read_index(file)
            runs = np.array([wanted.get(k, -1) for k in index.keys], dtype=np.int64)
            if not (runs >= 0).any():
                return []
            for metric, columns in pieces(file, index, runs):
                found.add(metric, *columns)
    except (Broken, OSError, MemoryError):
        _delete([path])
        return []
    collector.take(found)
    with contextlib.suppress(OSError):
        os.utime(path)
    return [wanted.pop(k) for k in index.keys if k in wanted]


def _trim(root: Path) -> None:
    """Delete what was not used for longest, down to `MAX_BYTES`, and what killed processes left unfinished."""
    kept = []
    for path in root.glob(f"*/{_PREFIX}*"):
        with contextlib.suppress(OSError):
            info = path.lstat()
            if path.suffix == SUFFIX:
                kept.append((info.st_mtime, info.st_size, path))
            elif path.suffix == UNFINISHED and (info.st_mtime < time.time() - _ABANDONED_S or not is_held(path)):
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
