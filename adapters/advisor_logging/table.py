"""Tables of logged rows, in the format in which the spool stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

MetricRow = tuple[int, int, Mapping[str, float]]
"""The values logged at one step: (step, milliseconds since 1970, values by metric name)."""


@dataclass(frozen=True, slots=True)
class MetricTable:
    """Rows that have the same metrics, in step order, stored by column. Steps count from 0; times are in milliseconds since
    1970."""

    steps: Sequence[int]
    times_ms: Sequence[int]
    columns: Mapping[str, Sequence[float]]

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self) -> list[MetricRow]:
        names = tuple(self.columns)
        lines = zip(*self.columns.values(), strict=True) if names else (() for _ in self.steps)
        return [
            (step, time_ms, dict(zip(names, line, strict=True)))
            for step, time_ms, line in zip(self.steps, self.times_ms, lines, strict=True)
        ]

    def every_nth_step(self, nth: int) -> MetricTable:
        """Return the rows whose step is a multiple of `nth`."""
        at = [i for i, step in enumerate(self.steps) if step % nth == 0]
        return self if len(at) == len(self) else self.select_rows(at)

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
    """Adds the metric values of other ranks to the rows of this process.

    To limit memory use, a row is returned without the values of a rank that has exited or is late.
    """

    def take(self, tables: Sequence[MetricTable]) -> Sequence[MetricTable]:
        """Queue the given rows, and return the rows that now have the values of all ranks, oldest first. The method is also
        called once per second with no new rows."""

    def finish(self) -> Sequence[MetricTable]:
        """After the end of the training, return the remaining rows, even if values of other ranks are missing."""
