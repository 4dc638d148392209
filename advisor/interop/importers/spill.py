"""Keeps the rows of many runs that lie mixed in one file: in memory, and beyond a bound on disk."""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np

from advisor.interop.importers.flat import Rows

_POINTS_IN_MEMORY = 5_000_000
"""120 MB."""


class Spill:
    """The rows of each run by its name; `names` are in the order of their first rows."""

    def __init__(self, points_in_memory: int = _POINTS_IN_MEMORY) -> None:
        self._most, self._held = points_in_memory, 0
        self._runs: dict[str, Rows] = {}
        self._last: tuple[Rows, int] | None = None
        self._folder: Path | None = None
        self._extents: dict[str, dict[str, tuple[float, float, int]]] = {}

    @property
    def names(self) -> list[str]:
        """The runs that have rows."""
        return list(self._runs)

    def rows(self, run: str | None) -> Rows:
        """Where to put the next rows of the run."""
        if self._last is not None:
            rows, before = self._last
            self._held += len(rows.curves) - before
        if self._held > self._most:
            self._to_disk()
        rows = self._runs.setdefault(run or "", Rows())
        self._last = rows, len(rows.curves)
        return rows

    def extents(self, run: str) -> dict[str, tuple[float, float, int]]:
        """Of each of the run's metrics the smallest and the largest value, and the number of points."""
        return _wider(self._extents.get(run, {}), self._runs[run].curves.extents())

    def take(self, run: str) -> Rows:
        """All rows of the run."""
        rows = self._runs[run]
        path = self._path(run)
        if path is not None and path.exists():
            late = list(rows.curves.drain())
            with path.open("rb") as file:
                while file.peek(1):
                    metric = bytes(np.load(file)).decode()
                    rows.curves.extend(metric, np.load(file), np.load(file), np.load(file))
            for metric, steps, values, times in late:
                rows.curves.extend(metric, steps, values, times)
            path.unlink()
        return rows

    def _path(self, run: str) -> Path | None:
        return None if self._folder is None else self._folder / str(self.names.index(run))

    def _to_disk(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="advisor-import-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        for number, (run, rows) in enumerate(self._runs.items()):
            self._extents[run] = self.extents(run)
            with (self._folder / str(number)).open("ab") as file:
                for metric, steps, values, times in rows.curves.drain():
                    for column in (np.frombuffer(metric.encode(), np.uint8), steps, values, times):
                        np.save(file, column, allow_pickle=False)
        self._held, self._last = 0, None


def _wider(
    one: dict[str, tuple[float, float, int]], other: dict[str, tuple[float, float, int]]
) -> dict[str, tuple[float, float, int]]:
    nothing = (math.inf, -math.inf, 0)
    pairs = {metric: (one.get(metric, nothing), other.get(metric, nothing)) for metric in {**one, **other}}
    return {metric: (min(a[0], b[0]), max(a[1], b[1]), a[2] + b[2]) for metric, (a, b) in pairs.items()}
