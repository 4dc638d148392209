"""Whether the early part of a curve is told from what comes after it, where noise may wander over many points."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray

_FEWEST = 10
"""Points of the second half below which they do not show how far they wander."""
_MOST = 0.97
"""Largest lag-1 correlation: beyond, a curve drifts."""


def chance_of_start(values: FloatArray, early: int) -> float:
    """How often a curve that never moves would start as low, or rise as far within its first `early` points.

    values: (n,), finite. The second half, of a start that blew up no part, is taken for the noise, about a line, whose value where
    it begins is the level: the first value lies below it, or the highest of the early ones above it, further than the next value of
    such noise would. The lag-1 correlation says how many values of their own the noise has. 0 where the curve falls below where it
    began, for then it moves, and where the second half is too short to tell.
    """
    after = values[max(early, len(values) // 2) :]
    if early < 2 or len(after) < _FEWEST:
        return 0.0
    at = np.arange(len(after)) / len(after)
    slope, level = np.polyfit(at, after, 1)
    rest = after - (level + slope * at)
    own, spread = _own(rest)
    if not spread > 0 or float(np.median(after)) < values[0] - 2 * spread:
        return 0.0
    # Of few values, or of a heavy tail, the largest says more than the spread: as far out as that of so many normal ones.
    usual = float(stats.norm.isf(0.5 / max(own, 2.0)))
    lower, upper = max(spread, -float(rest.min()) / usual), max(spread, float(rest.max()) / usual)
    error, freedom = math.sqrt(1 + 4 / own), max(own - 2, 1.0)
    below = float(stats.t.sf((level - float(values[0])) / (lower * error), freedom))
    above = float(stats.t.sf((float(values[:early].max()) - level) / (upper * error), freedom))
    return min(1.0, 2 * min(below, above * max(early * own / len(after), 1.0)))


def _own(rest: FloatArray) -> tuple[float, float]:
    """How many values of their own residuals (n,) about a line have, and their standard deviation, from their lag-1 correlation."""
    n, power = len(rest), float(rest @ rest)
    lag = float(rest[1:] @ rest[:-1]) / power if power > 0 else 0.0
    # The line takes some of the correlation away: about (1 + 4 lag) / n, twice that with the mean.
    lag = min(max(lag + (1 + 4 * lag) / n, 0.0), _MOST)
    own = n * (1 - lag) / (1 + lag)
    return own, math.sqrt(power / (n * max(1 - 2 / own, 0.2)))
