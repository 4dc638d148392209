"""Converts data from any kind of tracking store to runs and points."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from advisor import contract
from advisor.model.space import BoolArray, FloatArray
from advisor.system import spill
from advisor.tracking.runs import Points, Run, RunStatus

IntArray = NDArray[np.int64]
PointColumns = tuple[IntArray, IntArray, FloatArray, IntArray]
"""Points of a metric as four arrays of shape (n,): index of the run, step, value, and time in milliseconds since 1970."""

MAX_TEXT_CHARS = 5000
"""Maximum number of characters to read from a parameter or tag, because some users log whole files."""
MAX_USER_TAGS = 300
"""Maximum number of user-defined tags to read per run."""
SYSTEM_METRIC_PREFIX = "system/"

MLFLOW_TAGS = ("mlflow.runName", "mlflow.parentRunId", "mlflow.note.content", "mlflow.user", "mlflow.autologging")
MLFLOW_TAG_PREFIX = "mlflow."
MLFLOW_SOURCE_PREFIX = "mlflow.source."

STORED_INFINITY = float(np.finfo(np.float64).max)
"""Largest finite 64-bit float, as which MLflow's SQL stores save infinity."""
MIN_REAL_TIME_MS = 10**10
"""Minimum timestamp that is a real time, in milliseconds since 1970; smaller ones only order the points."""

_RUN_STATUSES: Mapping[str | None, RunStatus] = {status: status for status in get_args(RunStatus)}


def make_run(
    *,
    id: str,
    name: str | None,
    status: str | None,
    start_ms: int | None,
    end_ms: int | None,
    params: Mapping[str, str | None],
    tags: Mapping[str, str | None],
) -> Run:
    """Old MLflow stores keep the name of a run only in a tag."""
    return Run(
        id=id,
        name=name or tags.get("mlflow.runName") or "",
        status=_RUN_STATUSES.get(status, "RUNNING"),
        params={k: (params[k] or "")[:MAX_TEXT_CHARS] for k in sorted(params)},
        tags=select_tags(tags),
        started=None if start_ms is None else start_ms / 1000,
        ended=None if not end_ms else end_ms / 1000,
    )


def select_tags(tags: Mapping[str, str | None]) -> dict[str, str]:
    """Return the essential tags and the first `MAX_USER_TAGS` user-defined ones by name, with truncated values."""
    essential_tags = [k for k in tags if k in MLFLOW_TAGS or k.startswith((contract.TAG_PREFIX, MLFLOW_SOURCE_PREFIX))]
    user_tags = sorted(k for k in tags if not k.startswith((MLFLOW_TAG_PREFIX, contract.TAG_PREFIX)))
    return {k: (tags[k] or "")[:MAX_TEXT_CHARS] for k in [*sorted(essential_tags), *user_tags[:MAX_USER_TAGS]]}


class PointCollector:
    """Collects points in chunks, in any order, from several threads, and concatenates the chunks of each metric."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[PointColumns]] = {}
        self._recent: list[tuple[str, PointColumns]] = []
        """Chunks that are not yet grouped by metric in `_pieces`."""
        self._recent_points = 0
        self._lock = threading.Lock()

    def add(self, metric: str, runs: IntArray, steps: IntArray, values: FloatArray, times_ms: IntArray) -> None:
        """Add points of one metric, given as arrays of shape (n,). Times are in milliseconds since 1970."""
        if not len(runs):
            return
        with self._lock:
            self._recent.append((metric, (runs, steps, values, times_ms)))
            self._recent_points += len(runs)
            if self._recent_points > spill.MAX_POINTS_IN_MEMORY:
                columns = spill.move_tables_to_file([piece for _, piece in self._recent])
                self._recent = [(name, (c[0], c[1], c[2], c[3])) for (name, _), c in zip(self._recent, columns, strict=True)]
                self._group_by_metric()

    def add_all(self, other: PointCollector) -> None:
        for metric, pieces in other._group_by_metric().items():
            for piece in pieces:
                self.add(metric, *piece)

    def metrics(self) -> list[str]:
        return sorted(self._group_by_metric())

    def drop(self, metric: str, which: Callable[[IntArray, IntArray, IntArray], BoolArray]) -> None:
        """Remove the points of a metric at which the mask `which(runs, steps, times_ms)` is True."""
        for piece in self._group_by_metric().pop(metric, []):
            is_kept = ~which(piece[0], piece[1], piece[3])
            if is_kept.all():
                self._pieces.setdefault(metric, []).append(piece)
            else:
                self.add(metric, piece[0][is_kept], piece[1][is_kept], piece[2][is_kept], piece[3][is_kept])

    def count(self, runs: BoolArray) -> int:
        """Return the total number of points in the runs that the mask `runs`, shape (runs,), selects."""
        return sum(int(runs[piece[0]].sum()) for pieces in self._group_by_metric().values() for piece in pieces)

    def points(
        self, on_metric: Callable[[str, IntArray, IntArray, FloatArray, IntArray], None] | None = None
    ) -> dict[str, Points]:
        """Return and remove all points by metric, sorted by run, time, step and value. on_metric receives each metric."""
        pieces = self._group_by_metric()
        fits_in_memory = spill.fits_in_memory([len(runs) for each in pieces.values() for runs, *_ in each])
        points = {}
        for metric in sorted(pieces):
            runs, steps, values, times = _sorted_columns(pieces.pop(metric))
            if on_metric is not None:
                on_metric(metric, runs, steps, values, times)
            seconds: FloatArray = times / 1000.0
            seconds[times < MIN_REAL_TIME_MS] = np.nan
            points[metric] = Points(*spill.move_columns_to_file((runs, steps, values, seconds), fits=fits_in_memory))
        return points

    def _group_by_metric(self) -> dict[str, list[PointColumns]]:
        for metric, piece in self._recent:
            self._pieces.setdefault(metric, []).append(piece)
        self._recent, self._recent_points = [], 0
        return self._pieces


def _sorted_columns(pieces: list[PointColumns]) -> PointColumns:
    pieces.sort(key=lambda piece: int(piece[0].min()))
    runs, steps, values, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
    values[values >= STORED_INFINITY] = np.inf
    values[values <= -STORED_INFINITY] = -np.inf
    # Each chunk of points is usually sorted, but the runs of different chunks overlap.
    if not are_rows_ascending(runs, times, steps):
        order = np.argsort(runs, kind="stable")
        runs, steps, values, times = runs[order], steps[order], values[order], times[order]
    if not are_rows_ascending(runs, times, steps):
        order = np.lexsort((values, steps, times, runs))
        runs, steps, values, times = runs[order], steps[order], values[order], times[order]
    return runs, steps, values, times


def are_rows_ascending(*keys: NDArray[Any]) -> bool:
    """Return whether rows, compared by the first key, shape (rows,), then by the second, ..., strictly ascend."""
    is_ordered = np.zeros(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    for key in keys:
        if bool(((key[1:] < key[:-1]) & ~is_ordered).any()):
            return False
        is_ordered |= key[1:] > key[:-1]
    return bool(is_ordered.all())
