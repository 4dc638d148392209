"""The upper tail of a series' values or changes, against which the largest value or change is tested.

The scale of random changes is estimated from the smaller half of the series' changes; an exponential tail with this scale bounds
the largest change due to chance. For noise with lighter tails (normal, or log-normal on a log scale) the bound is conservative. At
most a quarter of the series may be outliers; more outliers would inflate the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.model.space import FloatArray

MIN_POINTS = 20
"""Minimum number of points of a series to estimate the size of its random changes."""
MIN_CHANGES = 80
"""Minimum number of independent changes for the tail to begin at their upper quartile instead of their median."""


@dataclass(frozen=True, slots=True)
class ExponentialTail:
    """The upper tail of a series' values: an exponential tail whose scale comes from the bulk of the values."""

    base: float
    """Value at which the tail begins."""
    scale: float
    """Mean excess over the base, estimated from the smaller half of the excesses."""
    tries: float
    """Number of values above the base; the largest of them is tested."""
    freedom: float
    """Number of independent excesses from which the scale is estimated."""

    def p(self, value: float) -> float:
        """Return the probability that the largest of the values reaches `value` by chance; exact for an exponential tail."""
        excess = value - self.base
        if not excess > 0:
            return 1.0
        return min(1.0, self.tries * math.exp(-self.freedom * math.log1p(excess / (self.freedom * self.scale))))

    def limit(self, chance: float) -> float:
        """Return the level that the largest value exceeds by chance with probability `chance`."""
        grown = math.expm1(math.log(max(self.tries / chance, 1.0)) / self.freedom)
        return self.base + self.freedom * self.scale * grown


def upper_tail(values: FloatArray, begin: float = 0.5) -> ExponentialTail | None:
    """Return the upper tail of finite values (n,) above their quantile `begin`; None if fewer than 4 values lie above it."""
    base = float(np.quantile(values, begin)) if len(values) else 0.0
    excesses = np.sort(values[values > base]) - base
    return _tail(excesses, base, len(excesses), 1.0) if len(excesses) >= 4 else None


def level_tail(moves: FloatArray, width: int) -> ExponentialTail | None:
    """Return the upper tail of changes (n,) between levels of `width` points; None if fewer than 4 lie above their median.

    The scale is estimated from falls and rises together, because noise causes both alike. If there are many changes, the tail
    begins at their upper quartile, where tails lighter than exponential give a lower bound. Neighbouring changes share points, so
    we treat only changes half a width apart as independent. With this rule, error rates were never above the nominal level in
    simulated noise, including heavy-tailed and autocorrelated noise.
    """
    centre = float(np.median(moves)) if len(moves) else 0.0
    above = int(np.count_nonzero(moves > centre))
    if above < 4:
        return None
    distances = np.sort(np.abs(moves - centre))
    overlap = (width + 1) // 2
    half = len(distances) // 2
    if len(distances) < MIN_CHANGES * overlap or distances[-1] <= distances[half]:
        return _tail(distances, centre, above, overlap)
    return _tail(distances[half:] - distances[half], centre + float(distances[half]), above / 2, overlap)


def _tail(excess: FloatArray, base: float, tries: float, overlap: float) -> ExponentialTail:
    """Return the tail of sorted excesses (n,). Of the excesses above the median, only the number counts, so that outliers have no
    effect.
    """
    half = max(len(excess) // 2, 1)
    scale = (float(excess[:half].sum()) + (len(excess) - half) * float(excess[half - 1])) / half
    return ExponentialTail(base, max(scale, 1e-300), tries, max(half / overlap, 1.0))
