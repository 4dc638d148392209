"""Column-wise rows of a training, as they move from the training to the spool and its readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

Row = tuple[int, int, Mapping[str, float]]
"""Step, wall-clock time in milliseconds, values by metric name."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with the same metrics in step order; all sequences have the same length. Steps count from 0; times since 1970."""

    steps: Sequence[int]
    times_ms: Sequence[int]
    columns: Mapping[str, Sequence[float]]

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self) -> list[Row]:
        """Return the table row by row."""
        names = tuple(self.columns)
        lines = zip(*self.columns.values(), strict=True) if names else (() for _ in self.steps)
        return [
            (step, time_ms, dict(zip(names, line, strict=True)))
            for step, time_ms, line in zip(self.steps, self.times_ms, lines, strict=True)
        ]

    def every(self, nth: int) -> Table:
        """Return the rows whose step is a multiple of `nth`."""
        at = [i for i, step in enumerate(self.steps) if step % nth == 0]
        return self if len(at) == len(self) else self.only(at)

    def only(self, at: Sequence[int]) -> Table:
        """Return the rows at these indexes."""
        columns = {name: [values[i] for i in at] for name, values in self.columns.items()}
        return Table([self.steps[i] for i in at], [self.times_ms[i] for i in at], columns)


def rows_to_tables(rows: Iterable[Row]) -> list[Table]:
    """Return one table per stretch of rows with the same metrics, so that no table has missing values."""
    tables = []
    for names, group in groupby(rows, key=lambda row: tuple(row[2])):
        steps, times_ms, values = zip(*group, strict=True)
        tables.append(Table(steps, times_ms, {name: [row[name] for row in values] for name in names}))
    return tables


class Completion(Protocol):
    """Adds other ranks' values to this process's rows. Called in the writer thread only.

    It must release rows incomplete if a rank is dead or late: memory is bounded.
    """

    def take(self, tables: Sequence[Table]) -> Sequence[Table]:
        """Take new rows of steps, if any, and return the completed ones, oldest first. Also called once a second."""

    def finish(self) -> Sequence[Table]:
        """Return the remaining rows after the end of the training, as complete as possible."""
