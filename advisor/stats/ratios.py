"""Computes shares of counts and ratios of sums, with their uncertainty."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import special

from advisor.model.space import FloatArray

_MAX_JACKKNIFE_SEGMENTS = 10
"""Maximum number of segments into which a series is divided for the jackknife. The jackknife leaves out one segment of the
series at a time."""


def p_value_of_share(share: float, points: int, limit: float) -> float:
    """Return the binomial probability that at least the share `share` of the points has a property if its true share is
    `limit`.

    `share` * `points` is rounded, because a weighted share need not be a whole number of points.
    """
    if points < 1:
        return 1.0
    return float(special.bdtrc(math.ceil(share * points - 0.5) - 1, points, limit))


def chance_of_at_least(hits: int, chances: FloatArray) -> float:
    """Return the probability that at least `hits` of independent events with these `chances` (n,) happen (Poisson binomial)."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.convolve(distribution, [1 - chance, chance])
    return float(min(distribution[max(hits, 0) :].sum(), 1.0))


def error_of_share(share: FloatArray, n: FloatArray) -> FloatArray:
    """Return the standard error, shape (k,), of shares of right answers, each among n examples.

    Half an example is added to the right and to the wrong answers, so that even shares of 0 and 1 have positive standard
    errors.
    """
    p = (share * n + 0.5) / (n + 1)
    return np.asarray(np.sqrt(p * (1 - p) / n), dtype=np.float64)


class Ratio(NamedTuple):
    """A ratio of the sums of two series, with its uncertainty."""

    value: float
    error: float
    """Standard error of the ratio, from the differences between segments of the series; NaN for fewer than 4 points."""
    freedom: int
    """Degrees of freedom of the standard error."""

    def chance_above(self, limit: float) -> float:
        """Return the probability that the true ratio exceeds `limit`; 0 if its standard error is unknown."""
        if not math.isfinite(self.error):
            return 0.0
        if self.error <= 0:
            return float(self.value > limit)
        return float(special.stdtr(self.freedom, (self.value - limit) / self.error))


def ratio_of_sums(numerators: FloatArray, denominators: FloatArray, weights: FloatArray) -> Ratio:
    """Return the weighted sum of `numerators` divided by the weighted sum of `denominators`, with a jackknife standard error.
    All arrays have shape (n,), n >= 1, and the sum of the denominators is positive.

    The jackknife leaves out segments, up to 10, instead of single points, so that drift and autocorrelation count as noise.
    """
    above, below = numerators * weights, denominators * weights
    value = float(above.sum() / below.sum())
    if len(numerators) < 4:
        return Ratio(value, math.nan, 0)
    blocks = min(_MAX_JACKKNIFE_SEGMENTS, len(numerators) // 2)
    block = np.arange(len(numerators)) * blocks // len(numerators)
    sums_above = above.sum() - np.bincount(block, above)
    sums_below = below.sum() - np.bincount(block, below)
    ratios_without = sums_above / np.maximum(sums_below, 1e-300)
    error = math.sqrt((blocks - 1) / blocks * float(np.sum((ratios_without - ratios_without.mean()) ** 2)))
    return Ratio(value, error, blocks - 1)
