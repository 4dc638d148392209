"""Rows of metric values: tables in the format of the spool, and the windows to which later steps are reduced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from advisor import contract

MetricRow = tuple[int, int, Mapping[str, float]]
"""The values logged at one step: (step, milliseconds since 1970, values by metric name)."""


@dataclass(frozen=True, slots=True)
class MetricTable:
    """Rows with the same metrics, in step order, by column. Steps count from 0; times are in ms since 1970."""

    steps: Sequence[int]
    times_ms: Sequence[int]
    columns: Mapping[str, Sequence[float]]

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self) -> list[MetricRow]:
        names = tuple(self.columns)
        row_values = zip(*self.columns.values(), strict=True) if names else (() for _ in self.steps)
        return [
            (step, time_ms, dict(zip(names, line, strict=True)))
            for step, time_ms, line in zip(self.steps, self.times_ms, row_values, strict=True)
        ]

    def every_nth_step(self, nth: int) -> MetricTable:
        """Return the rows whose step is a multiple of `nth`."""
        row_indices = [i for i, step in enumerate(self.steps) if step % nth == 0]
        return self if len(row_indices) == len(self) else self.select_rows(row_indices)

    def select_rows(self, indices: Sequence[int]) -> MetricTable:
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return MetricTable([self.steps[i] for i in indices], [self.times_ms[i] for i in indices], columns)


def rows_to_tables(rows: Iterable[MetricRow]) -> list[MetricTable]:
    """Return one table per sequence of consecutive rows with the same metrics, so that no column has missing values."""
    tables = []
    for names, group in groupby(rows, key=lambda row: tuple(row[2])):
        steps, times_ms, values = zip(*group, strict=True)
        tables.append(MetricTable(steps, times_ms, {name: [row[name] for row in values] for name in names}))
    return tables


class RowCompletion(Protocol):
    """Adds the values of other ranks to the rows of this process; a rank that has exited or is late is left out."""

    def take(self, tables: Sequence[MetricTable]) -> Sequence[MetricTable]:
        """Queue rows, and return the rows that now have the values of all ranks, oldest first; called once per second."""

    def finish(self) -> Sequence[MetricTable]:
        """After the end of the training, return the remaining rows, even if values of other ranks are missing."""


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One value of one metric, which can be NaN or infinite. Steps count from 0; times are in ms since 1970."""

    name: str
    value: float
    step: int
    time_ms: int


class RowWindowReducer:
    """Converts the rows of one training run, given in step order, to points.

    A window of one step yields one point; a window of several steps (`contract.window_width`) yields the mean, NAME.min and
    NAME.max at its last row. The mean is not finite if a value is not; minimum and maximum ignore NaN.
    """

    def __init__(self) -> None:
        self.window_start: int | None = None
        """First recorded step of the incomplete window; None if no window is open."""
        self._window = (0, 0)
        self._last = (0, 0)
        self._values: dict[str, list[float]] = {}

    def add_row(self, step: int, time_ms: int, values: Mapping[str, float]) -> list[MetricPoint]:
        """Return the points of the window that ends before this step, and those of this step if its window has width 1."""
        width = contract.window_width(step)
        window = (width, step // width)
        closed_points = self.close() if self.window_start is not None and window != self._window else []
        if width == 1:
            return closed_points + [MetricPoint(name, value, step, time_ms) for name, value in values.items()]
        if self.window_start is None:
            self.window_start, self._window = step, window
        self._last = (step, time_ms)
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)
        return closed_points

    def close(self) -> list[MetricPoint]:
        step, time_ms = self._last
        points = []
        for name, values in self._values.items():
            low, high = _minimum_and_maximum(values)
            points.append(MetricPoint(name, sum(values) / len(values), step, time_ms))
            points.append(MetricPoint(name + contract.MIN_SUFFIX, low, step, time_ms))
            points.append(MetricPoint(name + contract.MAX_SUFFIX, high, step, time_ms))
        self.window_start, self._values = None, {}
        return points


def _minimum_and_maximum(values: list[float]) -> tuple[float, float]:
    numbers = [v for v in values if not math.isnan(v)]
    return (min(numbers), max(numbers)) if numbers else (math.nan, math.nan)
