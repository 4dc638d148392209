"""Models the upper tail of the values or changes of a series, to test whether the largest one is due to chance.

The scale of random changes is estimated from the smaller half of the changes; an exponential tail with this scale bounds the
largest change by chance. The bound is conservative for noise with lighter tails, such as normal noise. Up to a quarter of the
series may be outliers; more outliers would inflate the estimated scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.model.space import FloatArray

MIN_POINTS = 20
"""Minimum number of points of a series to estimate the size of its random changes."""
MIN_CHANGES_FOR_QUARTILE = 80
"""Minimum number of independent changes for their tail to begin at the upper quartile instead of the median."""


@dataclass(frozen=True, slots=True)
class ExponentialTail:
    """An exponential upper tail of the values of a series, with a scale that comes from most of the values."""

    start_value: float
    """Value above which the tail begins."""
    scale: float
    """Mean excess over the start of the tail, estimated from the smaller half of the excesses."""
    values_above_base: float
    """Number of values in the tail. The test concerns the largest of them."""
    freedom: float
    """Number of independent excesses from which the scale is estimated."""

    def p_value(self, value: float) -> float:
        """Return the probability that the largest value reaches `value` by chance; exact for an exponential tail."""
        excess = value - self.start_value
        if not excess > 0:
            return 1.0
        return min(1.0, self.values_above_base * math.exp(-self.freedom * math.log1p(excess / (self.freedom * self.scale))))

    def limit(self, chance: float) -> float:
        """Return the level that the largest value exceeds by chance with probability `chance`."""
        grown = math.expm1(math.log(max(self.values_above_base / chance, 1.0)) / self.freedom)
        return self.start_value + self.freedom * self.scale * grown


def upper_tail(values: FloatArray, begin: float = 0.5) -> ExponentialTail | None:
    """Return the upper tail of finite values, shape (n,), above their quantile `begin`; None for fewer than 4 values above it."""
    base = float(np.quantile(values, begin)) if len(values) else 0.0
    excesses = np.sort(values[values > base]) - base
    return _fit_tail(excesses, base, len(excesses), 1.0) if len(excesses) >= 4 else None


def tail_of_level_changes(moves: FloatArray, width: int) -> ExponentialTail | None:
    """Return the upper tail of changes between levels of `width` points; None for fewer than 4 changes above the median.

    Falls and rises together determine the scale, because noise causes both alike. The tail of many changes begins at their
    upper quartile, where tails that are lighter than exponential yield a lower bound. Neighbouring changes have points in
    common, so only changes half a width apart count as independent. With half a width between independent changes, error rates
    never exceeded the nominal level in simulated noise, even if it was heavy-tailed or autocorrelated.
    """
    centre = float(np.median(moves)) if len(moves) else 0.0
    above = int(np.count_nonzero(moves > centre))
    if above < 4:
        return None
    distances = np.sort(np.abs(moves - centre))
    overlap = (width + 1) // 2
    half = len(distances) // 2
    if len(distances) < MIN_CHANGES_FOR_QUARTILE * overlap or distances[-1] <= distances[half]:
        return _fit_tail(distances, centre, above, overlap)
    return _fit_tail(distances[half:] - distances[half], centre + float(distances[half]), above / 2, overlap)


def _fit_tail(excess: FloatArray, base: float, tries: float, overlap: float) -> ExponentialTail:
    """Return the tail of sorted excesses, shape (n,). Only the number of the excesses above the median counts, so that outliers
    have no effect."""
    half = max(len(excess) // 2, 1)
    scale = (float(excess[:half].sum()) + (len(excess) - half) * float(excess[half - 1])) / half
    return ExponentialTail(base, max(scale, 1e-300), tries, max(half / overlap, 1.0))
