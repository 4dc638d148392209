"""Defines the interface of importers. An importer first lists the runs of a source, and then reads each run separately."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray
from advisor.tracking.points.collect import STORED_INFINITY
from advisor.tracking.runs import RunStatus

DEFAULT_RUN_START_MS = 1_577_836_800_000
"""Start time (2020-01-01) of runs whose source has no dates, in milliseconds since 1970."""
UNKNOWN_TIME = -1
_NON_FINITE_PATTERN = re.compile("nan|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class MetricPoints:
    """Points of one metric of one run, as three arrays of shape (n,): steps, values and times."""

    steps: NDArray[np.int64]
    values: FloatArray
    times_ms: NDArray[np.int64]

    def distinct(self) -> MetricPoints:
        """Return the points without duplicates, which tracking stores reject or drop."""
        if bool((np.diff(self.steps) > 0).all()):
            return self
        nan = np.isnan(self.values)
        columns = (nan, np.where(nan, 0.0, np.clip(self.values, -STORED_INFINITY, STORED_INFINITY)), self.times_ms, self.steps)
        order = np.lexsort(columns)
        is_duplicate = np.logical_and.reduce([column[order][1:] == column[order][:-1] for column in columns])
        is_kept = np.ones(len(order), dtype=np.bool_)
        is_kept[order[1:][is_duplicate]] = False
        return MetricPoints(self.steps[is_kept], self.values[is_kept], self.times_ms[is_kept])


class RunCurves:
    """Collects the metric points of one run in any order, using 24 bytes of memory per point."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[array[int], array[float], array[int]]] = defaultdict(
            lambda: (array("q"), array("d"), array("q"))
        )

    def __len__(self) -> int:
        return sum(len(steps) for steps, _, _ in self._columns.values())

    @property
    def metrics(self) -> frozenset[str]:
        return frozenset(self._columns)

    def add(self, metric: str, step: int, value: float, time_ms: int | None = None) -> None:
        """Add one point of a metric; `time_ms` is in ms since 1970. Raise OverflowError if the step has more than 64 bits."""
        columns = self._columns[metric]
        columns[0].append(step)
        columns[1].append(value)
        columns[2].append(UNKNOWN_TIME if time_ms is None else time_ms)

    def extend(self, metric: str, steps: NDArray[np.int64], values: FloatArray, times_ms: NDArray[np.int64]) -> None:
        """Add points of a metric, shape (n,) each. A negative time means that the time is unknown."""
        columns: tuple[array[Any], ...] = self._columns[metric]
        for column, cells in zip(columns, (steps, values, times_ms), strict=True):
            column.frombytes(np.ascontiguousarray(cells, column.typecode).tobytes())

    def update(self, other: RunCurves) -> None:
        for metric, columns in other._columns.items():
            self.extend(metric, *(np.frombuffer(column, column.typecode) for column in columns))

    def drop(self, metrics: Iterable[str]) -> None:
        for metric in metrics:
            self._columns.pop(metric, None)

    def values(self) -> Iterator[tuple[str, FloatArray]]:
        for metric, (_, values, _) in self._columns.items():
            yield metric, np.frombuffer(values)

    def points(self) -> dict[str, MetricPoints]:
        """Return the points of each metric in the order in which they were added. A point without a time gets its index in ms
        since 1970, which keeps the order in MLflow and counts as missing in the analysis (see `collect.MIN_REAL_TIME_MS`)."""
        metric_points = {}
        for metric, (steps, values, times) in self._columns.items():
            known_times = np.frombuffer(times, np.int64)
            known_times = np.where(known_times < 0, np.arange(len(known_times), dtype=np.int64), known_times)
            metric_points[metric] = MetricPoints(np.frombuffer(steps, np.int64), np.frombuffer(values), known_times)
        return metric_points


def convert_to_step(value: Any, error_prefix: str) -> int:
    """Return a training step. Raises AdvisorError(`error_prefix` …) unless it is an integer of at most 64 bits."""
    try:
        step = int(value)
        if isinstance(value, bool | str) or step != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise AdvisorError(f"{error_prefix}: the step {str(value)[:40]!r} is not a whole number") from None
    if not -(2**63) <= step < 2**63:
        raise AdvisorError(f"{error_prefix}: the step {str(value)[:40]} is too large; steps must be below 2^63")
    return step


def convert_to_value(value: Any) -> float | None:
    """Return a metric value as a float, or None if it is not a number. Texts such as "NaN" in JSON files count as numbers."""
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return float(value) if isinstance(value, str) and _NON_FINITE_PATTERN.fullmatch(value) else None


def convert_to_time_ms(seconds: Any) -> int | None:
    """Convert a time in seconds since 1970 to milliseconds. Return None if the date is implausible (before 1970 or after 2286)."""
    seconds_number = convert_to_value(seconds)
    return round(seconds_number * 1000) if seconds_number is not None and 0 < seconds_number < 1e10 else None


class Importer(Protocol):
    """Reads the files that one tool wrote. A module with a function `find_runs` is also an importer."""

    def find_runs(self, source: str | Path, /) -> RunList:
        """List the runs of a source, usually a folder with its subfolders. Raises AdvisorError if the source has no runs."""


@dataclass(frozen=True, slots=True)
class RunList:
    runs: Sequence[SourceRun]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SourceRun:
    name: str
    source: tuple[str, ...]
    """Identifier of the run in its source, unique within the experiment and independent of the working directory."""
    experiment: str
    """Name of the experiment to import the run into, unless the user names another one."""
    read: Callable[[], RunContent]
    """Function that reads the run's data; raises AdvisorError if the data are unreadable."""
    files_digest: str | None = None
    """Digest of the run's files, or None if the run cannot grow. The next import detects new data by a different digest."""
    experiment_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that the run proposes for its experiment. The experiment gets a tag only if all its runs propose the same value."""


@dataclass(frozen=True, slots=True)
class RunContent:
    """Data of a run, as the other tool stored them. `mlflow_runs` converts the names and parameters to valid ones for MLflow."""

    points: Mapping[str, MetricPoints]
    params: Mapping[str, Any] = field(default_factory=dict)
    """Values of the parameters by name. The import flattens nested mappings and joins the names of all levels by dots."""
    tags: Mapping[str, str] = field(default_factory=dict)
    status: RunStatus = "FINISHED"
    started_ms: int | None = None
    """Start time in ms since 1970, or None to use the earliest time of the metric points."""
    ended_ms: int | None = None
    notes: tuple[str, ...] = ()
