"""Shares that are counted or timed: how sure one lies above a limit, how exactly one is known."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray

_BLOCKS = 10


def chance_of_share(share: float, points: int, limit: float) -> float:
    """How often a share of `limit` would show as `share` or more among `points` independent ones (exact, binomial).

    A weighted share counts as the nearest number of points, as rounded up it would pass for one more than there were.
    """
    if points < 1:
        return 1.0
    return float(stats.binom.sf(math.ceil(share * points - 0.5) - 1, points, limit))


class Ratio(NamedTuple):
    """A ratio of sums over a series."""

    value: float
    error: float
    """Standard error, from how the ratio differs between stretches of the series; NaN for fewer than 4 points."""
    freedom: int
    """Degrees of freedom of the error."""

    def chance_above(self, limit: float) -> float:
        """Probability that the ratio of a series without end exceeds `limit`."""
        if not math.isfinite(self.error):
            return 0.0
        if self.error <= 0:
            return float(self.value > limit)
        return float(stats.t.sf((limit - self.value) / self.error, self.freedom))


def ratio(parts: FloatArray, wholes: FloatArray, weights: FloatArray) -> Ratio:
    """Weighted sum of `parts` (n,) over that of `wholes` (n,), n >= 1, positive sum; the error is a jackknife over 10 stretches.

    Stretches and not points are left out, so that a slow drift and what neighbours share count as noise.
    """
    above, below = parts * weights, wholes * weights
    value = float(above.sum() / below.sum())
    if len(parts) < 4:
        return Ratio(value, math.nan, 0)
    blocks = min(_BLOCKS, len(parts) // 2)
    block = np.arange(len(parts)) * blocks // len(parts)
    left_above = above.sum() - np.bincount(block, above)
    left_below = below.sum() - np.bincount(block, below)
    left = left_above / np.maximum(left_below, 1e-300)
    error = math.sqrt((blocks - 1) / blocks * float(np.sum((left - left.mean()) ** 2)))
    return Ratio(value, error, blocks - 1)
