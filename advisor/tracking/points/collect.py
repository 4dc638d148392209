"""Turns what a tracker stores into `Points`, the same whichever way it was read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor import contract
from advisor.model.space import BoolArray, FloatArray
from advisor.system import spill
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
    """Gathers points in pieces, any order, and joins them metric by metric. Several threads may add."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Columns]] = {}
        self._latest: list[tuple[str, Columns]] = []
        """What was added since the last time that it was sorted or put into a file."""
        self._points = 0
        """Of the latest."""
        self._adding = threading.Lock()

    def add(self, metric: str, runs: IntArray, steps: IntArray, values: FloatArray, times_ms: IntArray) -> None:
        """Add points of one metric, arrays of one shape (n,); times in milliseconds since the epoch."""
        if not len(runs):
            return
        with self._adding:
            self._latest.append((metric, (runs, steps, values, times_ms)))
            self._points += len(runs)
            if self._points > spill.FEW:
                filed = iter(spill.filed([column for _, piece in self._latest for column in piece]))
                self._latest = [
                    (name, (next(filed), next(filed), next(filed), next(filed))) for name, _ in self._latest
                ]
                self._sorted()

    def take(self, other: Collector) -> None:
        """Add all that another one gathered."""
        for metric, pieces in other._sorted().items():
            for piece in pieces:
                self.add(metric, *piece)

    def metrics(self) -> list[str]:
        """The metrics that points were added of."""
        return sorted(self._sorted())

    def drop(self, metric: str, which: Callable[[IntArray, IntArray, IntArray], BoolArray]) -> None:
        """Take out the points of a metric for which `which`, given (runs, steps, times in milliseconds), says so."""
        for piece in self._sorted().pop(metric, []):
            keep = ~which(piece[0], piece[1], piece[3])
            if keep.all():
                self._pieces.setdefault(metric, []).append(piece)
            else:
                runs, steps, values, times = piece
                self.add(metric, runs[keep], steps[keep], values[keep], times[keep])

    def count(self, runs: BoolArray) -> int:
        """How many points the runs marked in `runs` have."""
        return sum(int(runs[piece[0]].sum()) for pieces in self._sorted().values() for piece in pieces)

    def points(
        self, on_metric: Callable[[str, IntArray, IntArray, FloatArray, IntArray], None] | None = None
    ) -> dict[str, Points]:
        """All points by metric name, ordered by run, time, step and value; empties the collector, to need the memory once.

        on_metric: given each metric's columns in that order, as `add` takes them.
        """
        pieces = self._sorted()
        few = sum(len(runs) for each in pieces.values() for runs, *_ in each) <= spill.FEW
        joined = {}
        for metric in sorted(pieces):
            found = _join(pieces.pop(metric), few=few)
            if on_metric is not None:
                on_metric(metric, *found)
            joined[metric] = _timed(*found, few=few)
        return joined

    def _sorted(self) -> dict[str, list[Columns]]:
        """All pieces by metric."""
        for metric, piece in self._latest:
            self._pieces.setdefault(metric, []).append(piece)
        self._latest, self._points = [], 0
        return self._pieces


def _join(pieces: list[Columns], *, few: bool) -> Columns:
    """The pieces' points in order."""
    at_once = few or not _one_after_the_other(pieces)
    ordered = (_in_order(some) for some in ([pieces] if at_once else ([piece] for piece in pieces)))
    runs, steps, values, times = spill.joined(ordered, most=sum(len(p[0]) for p in pieces), few=few)
    return runs, steps, values, times


def _one_after_the_other(pieces: list[Columns]) -> bool:
    """Whether no run has points in two pieces, once these are sorted, which they are here."""
    pieces.sort(key=lambda piece: int(piece[0].min()))
    return all(one[0].max() < other[0].min() for one, other in pairwise(pieces))


def _in_order(pieces: Iterable[Columns]) -> Columns:
    runs, steps, values, times = (np.concatenate(column) for column in zip(*pieces, strict=True))
    values[values >= LARGEST] = np.inf
    values[values <= -LARGEST] = -np.inf
    if not ascending(runs, times, steps):  # pieces nearly always are within, and only came one before the other
        runs, steps, values, times = _taken(np.argsort(runs, kind="stable"), runs, steps, values, times)
    if not ascending(runs, times, steps):
        runs, steps, values, times = _taken(np.lexsort((values, steps, times, runs)), runs, steps, values, times)
    return runs, steps, values, times


def _taken(order: IntArray, runs: IntArray, steps: IntArray, values: FloatArray, times: IntArray) -> Columns:
    return runs[order], steps[order], values[order], times[order]


def ascending(*keys: NDArray[Any]) -> bool:
    """Whether rows are strictly ascending by the keys, each of shape (rows,), the first one foremost."""
    decided = np.zeros(max(len(keys[0]) - 1, 0), dtype=np.bool_)
    for key in keys:
        if bool(((key[1:] < key[:-1]) & ~decided).any()):
            return False
        decided |= key[1:] > key[:-1]
    return bool(decided.all())


def _timed(runs: IntArray, steps: IntArray, values: FloatArray, times: IntArray, *, few: bool) -> Points:
    parts = ((_seconds(times[part]),) for part in spill.portions(runs))
    (seconds,) = spill.joined(parts, most=len(runs), few=few)
    return Points(runs=runs, steps=steps, values=values, times=seconds)


def _seconds(times: IntArray) -> FloatArray:
    seconds: FloatArray = times / 1000.0
    seconds[times < UNTIMED_BEFORE_MS] = np.nan
    return seconds


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
