"""Rows of a training by column: how they go from the training to the spool, and from there to whoever reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

Row = tuple[int, int, Mapping[str, float]]
"""Step, wall clock in milliseconds, values by metric name."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that have the same metrics, in the order of their steps; all sequences are of the same length."""

    steps: Sequence[int]
    """Optimizer step of each row, 0-based."""
    times_ms: Sequence[int]
    """Wall clock, milliseconds since 1970."""
    columns: Mapping[str, Sequence[float]]
    """Values by metric name."""

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self) -> list[Row]:
        """The same, row by row."""
        names = tuple(self.columns)
        lines = zip(*self.columns.values(), strict=True) if names else (() for _ in self.steps)
        return [
            (step, time_ms, dict(zip(names, line, strict=True)))
            for step, time_ms, line in zip(self.steps, self.times_ms, lines, strict=True)
        ]

    def every(self, nth: int) -> Table:
        """Those of its rows whose step is a multiple of `nth`."""
        at = [i for i, step in enumerate(self.steps) if step % nth == 0]
        return self if len(at) == len(self) else self.only(at)

    def only(self, at: Sequence[int]) -> Table:
        """Those of its rows that are at these indexes."""
        columns = {name: [values[i] for i in at] for name, values in self.columns.items()}
        return Table([self.steps[i] for i in at], [self.times_ms[i] for i in at], columns)


def tables_of(rows: Iterable[Row]) -> list[Table]:
    """Rows as tables: one for each stretch of rows that have the same metrics, so that no value needs a mark for "missing"."""
    tables = []
    for names, group in groupby(rows, key=lambda row: tuple(row[2])):
        steps, times_ms, values = zip(*group, strict=True)
        tables.append(Table(steps, times_ms, {name: [row[name] for row in values] for name in names}))
    return tables


class Completion(Protocol):
    """Adds to the rows of this process what other ranks know of the same steps. Called in the writer thread only.

    A rank that is dead or late must not hold rows back for ever: memory is bounded by giving them out incomplete.
    """

    def take(self, tables: Sequence[Table]) -> Sequence[Table]:
        """Take the next rows of steps, if any, and give those that are complete by now, oldest first. Also called once a second."""

    def finish(self) -> Sequence[Table]:
        """The training is over: give what is left, as complete as it can be had."""
