"""Outliers of a positive series such as gradient norms, against the exponential tail of its bulk."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import FloatArray, IntArray
from advisor.stats.jumps import MIN_POINTS, Tail, upper_tail

_RANKS = (1, 2, 4, 8, 16)
"""Ranks of the ratios, largest first, that are tested for outliers."""


@dataclass(frozen=True, slots=True)
class Outliers:
    """Outliers of a positive series: values far above its running median."""

    indices: IntArray
    """Indices of the outliers, largest ratio first."""
    ratios: FloatArray
    """Ratio of each point to the running median, shape (n,)."""
    limit: float
    """Ratio that the `count` largest ratios all exceed by chance, with the probability passed to `outliers`."""
    count: int
    """Number of largest ratios, one of `_RANKS`, with the lowest p-value."""
    p: float
    """Probability that ratios distributed like the bulk include as many as large as these (p-value)."""

    @property
    def largest(self) -> float:
        """Largest ratio of a point to the running median."""
        return float(self.ratios.max())


def outliers(values: FloatArray, chance: float, factor: float, width: int = 31) -> Outliers | None:
    """Return the values (n,), positive and finite, that exceed `factor` times their running median and the limit for `chance`.

    Return None for fewer than 20 points. Logarithms of ratios are compared: gradient norms of healthy runs are approximately
    log-normal, with a lighter tail than the exponential tail of the limit. The largest, second, fourth, eighth and sixteenth
    largest ratios are tested (Bonferroni correction), because several moderate outliers are rarer by chance than a single one.
    """
    if len(values) < MIN_POINTS:
        return None
    logs = np.log(values)
    away = logs - median_filter(logs, size=min(width, 2 * (len(values) // 4) + 1), mode="nearest")
    tail = upper_tail(away)
    if tail is None:
        return None
    order = np.argsort(-away, kind="stable")
    looks = [k for k in _RANKS if k <= len(away)]
    p, count = min((len(looks) * _chance_of(tail, float(away[order[k - 1]]), k, len(away)), k) for k in looks)
    limit = _reached_by(tail, count, len(away), chance / len(looks))
    far = order[away[order] > max(limit, math.log(factor))] if p <= chance else order[:0]
    ratios = np.exp(np.minimum(away, 700.0))
    return Outliers(far, ratios, math.exp(min(limit, 700.0)), count, min(1.0, p))


def _chance_of(tail: Tail, value: float, count: int, n: int) -> float:
    """Return the probability that `count` of n values with this tail reach `value`."""
    excess = max(value - tail.base, 0.0) / tail.scale
    share = tail.tries / n * math.exp(-tail.freedom * math.log1p(excess / tail.freedom))
    return float(stats.binom.sf(count - 1, n, min(share, 1.0)))


def _reached_by(tail: Tail, count: int, n: int, chance: float) -> float:
    """Return the level that `count` of n values with this tail reach with probability `chance`."""
    share = float(stats.beta.ppf(min(chance, 1.0), count, n - count + 1))
    grown = math.expm1(max(math.log(tail.tries / n / max(share, 1e-300)), 0.0) / tail.freedom)
    return tail.base + tail.freedom * tail.scale * grown
