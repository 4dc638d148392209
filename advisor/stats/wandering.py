"""Tests whether the start of a curve differs from its later part by more than autocorrelated noise."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray

_MIN_POINTS = 10
"""Minimum number of points in the second half of a curve to estimate its autocorrelation."""
_POINTS_PER_LEVEL = 5
"""Number of highest early values whose mean is the height of an early rise."""
_MAX_INDEPENDENT_SHARE = 1 / 3
"""Maximum share of independent values in strongly autocorrelated noise; it corresponds to a lag-1 autocorrelation of one half."""
_MAX_AUTOCORRELATION = 0.97
"""Maximum lag-1 autocorrelation of noise; with a higher autocorrelation, the curve counts as drifting."""


def p_value_of_unusual_start(values: FloatArray, early_points: int) -> float:
    """Return the p-value: the probability that a curve without trend starts as low, or rises as high among its first
    `early_points` points.

    values: (n,), finite. A line is fitted to the second half of the curve and extrapolated to its start; the residuals of the
    line are the noise. The first half of the curve is left out of the fit, because the loss may blow up there. The lag-1
    autocorrelation determines the number of independent values. A curve that falls below its start has a trend, which makes a
    rise less likely. For a curve with a trend, return the probability that strongly autocorrelated noise alone rises as high; 0
    for other noise, or if the second half is too short.
    """
    second_half = values[max(early_points, len(values) // 2) :]
    if early_points < 2 or len(second_half) < _MIN_POINTS:
        return 0.0
    at = np.arange(len(second_half)) / len(second_half)
    slope, level = np.polyfit(at, second_half, 1)
    residual = second_half - (level + slope * at)
    independent, spread = _independent_values(residual)
    if not spread > 0:
        return 0.0
    if float(np.median(second_half)) < values[0] - 2 * spread:
        independent, spread = _independent_values(second_half - np.polyval(np.polyfit(at, second_half, 3), at))
        rise = float(np.sort(values[:early_points])[-min(_POINTS_PER_LEVEL, early_points) :].mean() - values[0])
        if independent > _MAX_INDEPENDENT_SHARE * len(second_half) or not (spread > 0 and rise > 0):
            return 0.0
        tries = max(early_points * independent / len(second_half), 1.0)
        chance = tries * float(stats.t.sf(rise / (math.sqrt(2) * spread), max(independent - 2, 1.0)))
        return min(1.0, chance)
    # For few values or heavy tails, the scale is the extreme residual divided by the expected extreme of as many normal values.
    normal_extreme = float(stats.norm.isf(0.5 / max(independent, 2.0)))
    lower, upper = (max(spread, -float(residual.min()) / normal_extreme), max(spread, float(residual.max()) / normal_extreme))
    error, freedom = math.sqrt(1 + 4 / independent), max(independent - 2, 1.0)
    p_below = float(stats.t.sf((level - float(values[0])) / (lower * error), freedom))
    p_above = float(stats.t.sf((float(values[:early_points].max()) - level) / (upper * error), freedom))
    return min(1.0, 2 * min(p_below, p_above * max(early_points * independent / len(second_half), 1.0)))


def _independent_values(residual: FloatArray) -> tuple[float, float]:
    """Return (number of independent values, standard deviation) of residuals (n,) about a line, by lag-1 autocorrelation."""
    n, squares = len(residual), float(residual @ residual)
    lag = float(residual[1:] @ residual[:-1]) / squares if squares > 0 else 0.0
    # Fitting the line lowers the estimated autocorrelation by about (1 + 4 lag) / n.
    lag = min(max(lag + (1 + 4 * lag) / n, 0.0), _MAX_AUTOCORRELATION)
    independent = n * (1 - lag) / (1 + lag)
    return independent, math.sqrt(squares / (n * max(1 - 2 / independent, 0.2)))
