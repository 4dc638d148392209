"""Reduces a curve at full resolution to the same windows (mean, minimum and maximum of several steps) that our logger writes to
the store."""

from __future__ import annotations

import math

import numpy as np

from advisor import contract
from advisor.model.space import FloatArray, IntArray

Columns = tuple[IntArray, FloatArray, IntArray]
"""Points as three arrays of shape (n,): steps, values, and times in milliseconds since 1970."""


def summarize_in_windows(name: str, steps: IntArray, values: FloatArray, times: IntArray) -> dict[str, Columns]:
    """Return the columns of the metrics NAME, NAME.min and NAME.max for a curve in ascending order of steps.

    `contract.window_width` determines the width of the windows. The window means are computed with Python floats, as in the
    logger, so that both results are bit-identical.
    """
    bounds = _window_bounds(steps)
    last = bounds[1:] - 1
    means, lows, highs = np.empty(len(last)), np.empty(len(last)), np.empty(len(last))
    for i, (start, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        inside = values[start:stop].tolist()
        means[i] = sum(inside) / len(inside)
        numbers = [v for v in inside if not math.isnan(v)]
        lows[i], highs[i] = (min(numbers), max(numbers)) if numbers else (math.nan, math.nan)
    wide = np.array([contract.window_width(step) > 1 for step in steps[last].tolist()], dtype=np.bool_)
    at, when = steps[last], times[last]
    return {
        name: (at, means, when),
        name + contract.MIN_SUFFIX: (at[wide], lows[wide], when[wide]),
        name + contract.MAX_SUFFIX: (at[wide], highs[wide], when[wide]),
    }


def _window_bounds(steps: IntArray) -> IntArray:
    """Return the index of each window's first point, followed by the total number of points; shape (windows + 1,)."""
    width = np.ones(len(steps), dtype=np.int64)
    edge = contract.DENSELY_LOGGED_STEPS
    while len(steps) and edge <= steps[-1]:
        width[steps >= edge] *= 2
        edge *= 2
    number = steps // width
    starts = np.flatnonzero((width[1:] != width[:-1]) | (number[1:] != number[:-1]) | (width[1:] == 1)) + 1
    return np.concatenate(([0], starts, [len(steps)]) if len(steps) else ([0],)).astype(np.int64)
