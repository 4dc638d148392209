"""What every importer hands over: runs that a source holds, found at once and read one at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from advisor.interop.importers.writer import NewPoints
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray
from advisor.tracking.runs import RunStatus

START_MS = 1_577_836_800_000
"""2020-01-01: when a run of a source that holds no dates is said to have started."""
_UNTIMED = -1


class Curves:
    """Gathers the points of one run in any order, 24 bytes each."""

    def __init__(self) -> None:
        self._columns: dict[str, tuple[array[int], array[float], array[int]]] = {}

    def __len__(self) -> int:
        return sum(len(steps) for steps, _, _ in self._columns.values())

    @property
    def metrics(self) -> frozenset[str]:
        """The names of the metrics that have points."""
        return frozenset(self._columns)

    def add(self, metric: str, step: int, value: float, time_ms: int | None = None) -> None:
        """Add a point; time in milliseconds since 1970. OverflowError for a step beyond 64 bits."""
        columns = self._columns.get(metric) or self._new(metric)
        columns[0].append(step)
        columns[1].append(value)
        columns[2].append(_UNTIMED if time_ms is None else time_ms)

    def extend(self, metric: str, steps: NDArray[np.int64], values: FloatArray, times_ms: NDArray[np.int64]) -> None:
        """Add points, arrays of one shape (n,); a negative time is none."""
        columns = self._columns.get(metric) or self._new(metric)
        columns[0].frombytes(np.ascontiguousarray(steps, np.int64).tobytes())
        columns[1].frombytes(np.ascontiguousarray(values, np.float64).tobytes())
        columns[2].frombytes(np.ascontiguousarray(times_ms, np.int64).tobytes())

    def extents(self) -> dict[str, tuple[float, float, int]]:
        """Of each metric the smallest and the largest value, NaN if any is, and the number of points."""
        values = {metric: np.frombuffer(column) for metric, (_, column, _) in self._columns.items() if len(column)}
        return {metric: (float(v.min()), float(v.max()), len(v)) for metric, v in values.items()}

    def drain(self) -> Iterator[tuple[str, NDArray[np.int64], FloatArray, NDArray[np.int64]]]:
        """All points as `extend` takes them, metric by metric; empties the curves, but keeps their metrics' names."""
        for metric, (steps, values, times) in list(self._columns.items()):
            self._columns[metric] = (array("q"), array("d"), array("q"))
            yield metric, np.frombuffer(steps, np.int64), np.frombuffer(values), np.frombuffer(times, np.int64)

    def points(self) -> dict[str, NewPoints]:
        """The points by metric, in the order in which they were added.

        A point without a time gets its place in the order instead, in the first seconds of 1970: so MLflow keeps the order, and the
        analysis knows that there is no time (see `collect.UNTIMED_BEFORE_MS`).
        """
        found = {}
        for metric, columns in self._columns.items():
            steps = np.frombuffer(columns[0], np.int64)
            times = np.frombuffer(columns[2], np.int64)
            times = np.where(times < 0, np.arange(len(times), dtype=np.int64), times)
            found[metric] = NewPoints(steps, np.frombuffer(columns[1], np.float64), times)
        return found

    def _new(self, metric: str) -> tuple[array[int], array[float], array[int]]:
        return self._columns.setdefault(metric, (array("q"), array("d"), array("q")))


@dataclass(frozen=True, slots=True)
class Content:
    """A run as its source has it: any names, parameters of any type; what MLflow takes of it is made when it is written."""

    points: Mapping[str, NewPoints]
    params: Mapping[str, Any] = field(default_factory=dict)
    """By name; mappings in it become names with dots."""
    tags: Mapping[str, str] = field(default_factory=dict)
    status: RunStatus = "FINISHED"
    started_ms: int | None = None
    """None: when its first timed point was logged."""
    ended_ms: int | None = None
    notes: tuple[str, ...] = ()
    """What the user should know of this run, one sentence each."""


@dataclass(frozen=True, slots=True)
class Found:
    """A run that a source holds, not read yet."""

    name: str
    source: tuple[str, ...]
    """What identifies it: the same whenever and from wherever it is imported, and no other run of its experiment has it."""
    experiment: str
    """The experiment that it goes into unless the user names one."""
    read: Callable[[], Content]
    """AdvisorError where it cannot be read."""
    state: str | None = None
    """What changes when the run has grown; None for a source that is finished."""
    experiment_tags: Mapping[str, str] = field(default_factory=dict)
    """Of these the experiment gets what all its runs agree on."""


def as_step(value: Any, where: str) -> int:
    """A step as a whole number; AdvisorError, which begins with `where`, if it is none or does not fit into 64 bits."""
    try:
        step = int(value)
        if isinstance(value, bool | str) or step != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise AdvisorError(f"{where}: the step {str(value)[:40]!r} is not a whole number") from None
    if not -(2**63) <= step < 2**63:
        raise AdvisorError(f"{where}: the step {str(value)[:40]} is too large; steps end before 2^63")
    return step


def as_value(value: Any) -> float | None:
    """A metric's value; None for what is no number. Words for non-finite numbers count, as JSON files hold them."""
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    return _NON_FINITE.get(value.lower()) if isinstance(value, str) and len(value) < 10 else None


_NON_FINITE = {
    "nan": float("nan"),
    **dict.fromkeys(("infinity", "inf", "+infinity", "+inf"), float("inf")),
    **dict.fromkeys(("-infinity", "-inf"), float("-inf")),
}


def as_time_ms(seconds: Any) -> int | None:
    """Seconds since 1970 as milliseconds; None where they are no time of the computer age."""
    number = as_value(seconds)
    return round(number * 1000) if number is not None and 0 < number < 1e10 else None
