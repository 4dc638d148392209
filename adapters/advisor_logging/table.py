"""Rows of a training by column: how they go from the training to the spool, and from there to whoever reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Row = tuple[int, int, Mapping[str, float]]
"""Step, wall clock in milliseconds, values by metric name."""

LOCAL_SQUARE = "~local_square"
"""A column of this name after a metric's holds what this rank adds to the metric's square: ranks sum it, add the square of the
metric's own column, which is the same on all of them, and take the root. No such column may reach the spool."""


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


class Completion(Protocol):
    """Adds to the rows of this process what other ranks know of the same steps. Called in the writer thread only.

    What it returns goes to the spool as it is: without LOCAL_SQUARE columns. A rank that is dead or late must not hold rows back for
    ever: memory is bounded by giving them out incomplete.
    """

    def take(self, tables: Sequence[Table]) -> Sequence[Table]:
        """Take the next rows of steps, if any, and give those that are complete by now, oldest first. Also called once a second."""

    def finish(self) -> Sequence[Table]:
        """The training is over: give what is left, as complete as it can be had."""
