"""Keeps the first `contract.DENSE_STEPS` steps of each metric, and reduces later steps to windows with mean, minimum and
maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advisor import contract


@dataclass(frozen=True, slots=True)
class Point:
    """One stored value of one metric. The value can be NaN or infinite. Steps count from 0; times are in milliseconds
    since 1970."""

    name: str
    value: float
    step: int
    time_ms: int


class Windows:
    """Converts the rows of one training, given in step order, to points.

    All metrics share the same windows, defined by `contract.window_width`. For a window of one step, the metric NAME gets one
    point. For a wider window, the metrics NAME (the mean), NAME.min and NAME.max get one point each, with the step and time of the
    window's last row. If a window contains NaN or infinity, the mean over the window is not finite. Minimum and maximum ignore NaN,
    so they describe the other values of the window.
    """

    def __init__(self) -> None:
        self.open_since: int | None = None
        """First observed step of the window that is being filled; None if no window is open."""
        self._window = (0, 0)
        self._last = (0, 0)
        self._values: dict[str, list[float]] = {}

    def add(self, step: int, time_ms: int, values: Mapping[str, float]) -> list[Point]:
        """Add the values of one step. Return the points of the window that this step closes and, if the step's own window has width
        1, the points of the step."""
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
        """Close the open window and return its points."""
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
    """Return the minimum and maximum of the values that are not NaN; NaN if all values are NaN."""
    numbers = [v for v in values if not math.isnan(v)]
    return (min(numbers), max(numbers)) if numbers else (math.nan, math.nan)
