"""Turns what a tracker stores into `Points`, the same whichever way it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from advisor import contract
from advisor.space import BoolArray, FloatArray
from advisor.tracking.runs import Points, Run, RunStatus

IntArray = NDArray[np.int64]
Columns = tuple[IntArray, IntArray, FloatArray, IntArray]
"""Points of a metric, each of shape (n,): runs, steps, values, and times in milliseconds since the epoch."""

MAX_TEXT = 5000
"""Characters read of a parameter's or tag's value; whole files that people log as tags are cut there."""
MAX_TAGS = 300
"""Tags read of a run, not counting the essential ones that adapters and MLflow write."""
SYSTEM_PREFIX = "system/"

MLFLOW_TAGS = ("mlflow.runName", "mlflow.parentRunId", "mlflow.note.content", "mlflow.user")
MLFLOW_TAG_PREFIX = "mlflow."
MLFLOW_SOURCE_PREFIX = "mlflow.source."

LARGEST = float(np.finfo(np.float64).max)
"""MLflow's SQL stores write infinity as the largest finite number and give it back as that."""
UNTIMED_BEFORE_MS = 10**10
"""A timestamp in the first months of 1970 is no time: it only tells in which order points were logged."""


def essential_tag(key: str) -> bool:
    """Whether the tag is one that the analysis or the report uses."""
    return key in MLFLOW_TAGS or key.startswith((contract.TAG_PREFIX, MLFLOW_SOURCE_PREFIX))


def keep_tags(tags: Mapping[str, str | None]) -> dict[str, str]:
    """The tags kept of a run: the essential ones, and of the user's own the first `MAX_TAGS` by name; values cut to `MAX_TEXT`."""
    ours = [k for k in tags if essential_tag(k)]
    others = sorted(k for k in tags if not k.startswith((MLFLOW_TAG_PREFIX, contract.TAG_PREFIX)))
    return {k: (tags[k] or "")[:MAX_TEXT] for k in [*sorted(ours), *others[:MAX_TAGS]]}


class Collector:
    """Gathers points in pieces, any order, and joins them metric by metric."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Columns]] = {}

    def add(self, metric: str, runs: IntArray, steps: IntArray, values: FloatArray, times_ms: IntArray) -> None:
        """Add points of one metric, arrays of one shape (n,); times in milliseconds since the epoch."""
        self._pieces.setdefault(metric, []).append((runs, steps, values, times_ms))

    def metrics(self) -> list[str]:
        """The metrics that points were added of."""
        return sorted(self._pieces)

    def drop(self, metric: str, which: Callable[[IntArray, IntArray, IntArray], NDArray[np.bool_]]) -> None:
        """Take out the points of a metric for which `which`, given (runs, steps, times in milliseconds), says so."""
        kept = []
        for runs, steps, values, times in self._pieces.pop(metric, []):
            keep = ~which(runs, steps, times)
            if keep.any():
                kept.append((runs[keep], steps[keep], values[keep], times[keep]))
        if kept:
            self._pieces[metric] = kept

    def count(self, runs: BoolArray) -> int:
        """How many points the runs marked in `runs` have."""
        return sum(int(runs[piece[0]].sum()) for pieces in self._pieces.values() for piece in pieces)

    def points(
        self, on_metric: Callable[[str, IntArray, IntArray, FloatArray, IntArray], None] | None = None
    ) -> dict[str, Points]:
        """All points by metric name, ordered by run, time, step and value; empties the collector, to need the memory once.

        on_metric: given each metric's columns in that order, as `add` takes them.
        """
        joined = {}
        for metric in sorted(self._pieces):
            columns = _join(self._pieces.pop(metric))
            if on_metric is not None:
                on_metric(metric, *columns)
            joined[metric] = _timed(*columns)
        return joined


def _join(pieces: Iterable[Columns]) -> Columns:
    runs, steps, values, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
    values[values >= LARGEST] = np.inf
    values[values <= -LARGEST] = -np.inf
    columns = runs, steps, values, times
    if not _in_order(columns):  # pieces nearly always are within, and only came one before the other
        columns = _taken(columns, np.argsort(runs, kind="stable"))
    if not _in_order(columns):
        runs, steps, values, times = columns
        columns = _taken(columns, np.lexsort((values, steps, times, runs)))
    return columns


def _taken(columns: Columns, order: IntArray) -> Columns:
    runs, steps, values, times = columns
    return runs[order], steps[order], values[order], times[order]


def _in_order(columns: Columns) -> bool:
    runs, steps, _, times = columns
    return _ordered(runs, times, steps)


def _timed(runs: IntArray, steps: IntArray, values: FloatArray, times: IntArray) -> Points:
    seconds = times / 1000.0
    seconds[times < UNTIMED_BEFORE_MS] = np.nan
    return Points(runs=runs, steps=steps, values=values, times=seconds)


def _ordered(*keys: IntArray) -> bool:
    """Whether the rows are strictly ascending by the keys, the first one foremost."""
    decided = np.zeros(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    for key in keys:
        if bool(((key[1:] < key[:-1]) & ~decided).any()):
            return False
        decided |= key[1:] > key[:-1]
    return bool(decided.all())


def text_maps(rows: Iterable[tuple[int, str, str | None]], runs: int) -> list[dict[str, str | None]]:
    """(run, key, value) rows as one mapping a run, shape (runs,)."""
    maps: list[dict[str, str | None]] = [{} for _ in range(runs)]
    for run, key, value in rows:
        maps[run][key] = value
    return maps


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
    """A run from what its tracker holds of it; old stores have its name only as a tag."""
    return Run(
        id=id,
        name=name or tags.get("mlflow.runName") or "",
        status=_STATUSES.get(status or "", "RUNNING"),
        params={k: (params[k] or "")[:MAX_TEXT] for k in sorted(params)},
        tags=keep_tags(tags),
        started=None if start_ms is None else start_ms / 1000,
        ended=None if not end_ms else end_ms / 1000,
    )


_STATUSES: Mapping[str, RunStatus] = {
    "FINISHED": "FINISHED",
    "FAILED": "FAILED",
    "KILLED": "KILLED",
    "RUNNING": "RUNNING",
    "SCHEDULED": "SCHEDULED",
}
