"""Every step for the first `contract.DENSE_STEPS`, then windows of a mean and its extremes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advisor import contract


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one metric, as the store keeps it."""

    name: str
    value: float
    """May be NaN or infinite: both are findings, not errors."""
    step: int
    """Optimizer step, 0-based."""
    time_ms: int
    """Wall clock, milliseconds since 1970."""


class Windows:
    """Turns rows of one training, which arrive in the order of their steps, into points.

    All metrics share the windows of `contract.window_width`. A window whose width is 1 gives NAME; a wider one NAME (the mean),
    NAME.min and NAME.max, all at the step and time of its last row. Whatever is not finite stays visible: a NaN or an infinity
    in a window makes its mean one too, while the extremes are those of the values that are numbers (infinities included), so
    that they still say what the rest of the window did.
    """

    def __init__(self) -> None:
        self.open_since: int | None = None
        """First step that was seen of the window that is still open; None when none is."""
        self._window = (0, 0)
        self._last = (0, 0)
        self._values: dict[str, list[float]] = {}

    def add(self, step: int, time_ms: int, values: Mapping[str, float]) -> list[Point]:
        """Add the row of one step; gives the points of the window that this closed, often none."""
        width = contract.window_width(step)
        window = (width, step // width)
        closed = self.close() if self.open_since is not None and window != self._window else []
        if width == 1:
            return closed + [Point(name, value, step, time_ms) for name, value in values.items()]
        if self.open_since is None:
            self.open_since, self._window = step, window
        self._last = (step, time_ms)
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)
        return closed

    def close(self) -> list[Point]:
        """The points of the window that is open, which ends here."""
        step, time_ms = self._last
        points = []
        for name, values in self._values.items():
            low, high = _extremes(values)
            points.append(Point(name, sum(values) / len(values), step, time_ms))
            points.append(Point(name + contract.MIN_SUFFIX, low, step, time_ms))
            points.append(Point(name + contract.MAX_SUFFIX, high, step, time_ms))
        self.open_since, self._values = None, {}
        return points


def _extremes(values: list[float]) -> tuple[float, float]:
    """Smallest and largest of the values (n,) that are numbers; NaN where none is."""
    numbers = [v for v in values if not math.isnan(v)]
    return (min(numbers), max(numbers)) if numbers else (math.nan, math.nan)
