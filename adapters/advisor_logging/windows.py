"""Keeps the first `contract.DENSELY_LOGGED_STEPS` steps of each metric, and reduces later steps to windows (mean, minimum and
maximum of several steps)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from advisor import contract


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One stored value of one metric at one step. The value of the metric can be NaN or infinite. Steps count from 0; times are
    in milliseconds since 1970."""

    name: str
    value: float
    step: int
    time_ms: int


class RowWindowReducer:
    """Converts the rows of one training run, given in step order, to points.

    All metrics have the same windows, which `contract.window_width` defines. A window of one step yields one point for the
    metric NAME. A window of several steps yields one point each for the metrics NAME (the mean), NAME.min and NAME.max; its
    step and time are those of the last row in the window. If a window contains NaN or infinity, the mean over the window is not
    finite. Minimum and maximum ignore NaN values, so they describe the finite and infinite values of the window.
    """

    def __init__(self) -> None:
        self.open_since: int | None = None
        """First recorded step of the incomplete window; None if no window is open."""
        self._window = (0, 0)
        self._last = (0, 0)
        self._values: dict[str, list[float]] = {}

    def add(self, step: int, time_ms: int, values: Mapping[str, float]) -> list[MetricPoint]:
        """Return the points of the window that ends before this step. If the window of this step has width 1, also return the
        points of this step."""
        width = contract.window_width(step)
        window = (width, step // width)
        closed = self.close() if self.open_since is not None and window != self._window else []
        if width == 1:
            return closed + [MetricPoint(name, value, step, time_ms) for name, value in values.items()]
        if self.open_since is None:
            self.open_since, self._window = step, window
        self._last = (step, time_ms)
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)
        return closed

    def close(self) -> list[MetricPoint]:
        """Close the incomplete window and return its points."""
        step, time_ms = self._last
        points = []
        for name, values in self._values.items():
            low, high = _minimum_and_maximum(values)
            points.append(MetricPoint(name, sum(values) / len(values), step, time_ms))
            points.append(MetricPoint(name + contract.MIN_SUFFIX, low, step, time_ms))
            points.append(MetricPoint(name + contract.MAX_SUFFIX, high, step, time_ms))
        self.open_since, self._values = None, {}
        return points


def _minimum_and_maximum(values: list[float]) -> tuple[float, float]:
    """Return the minimum and maximum of the values without NaN; return NaN if all values are NaN."""
    numbers = [v for v in values if not math.isnan(v)]
    return (min(numbers), max(numbers)) if numbers else (math.nan, math.nan)
