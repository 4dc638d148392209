"""Finds outliers of a positive series such as gradient norms: values beyond the exponential tail that fits most of the series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import FloatArray, IntArray
from advisor.stats.tails import MIN_POINTS, ExponentialTail, upper_tail

_MAX_WINDOW = 31
"""Maximum width of the running median, in points."""
_TESTED_RANKS = (1, 2, 4, 8, 16)
"""Ranks of the ratios, counted from the largest, at which outliers are tested."""
_NODES, _QUADRATURE_WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
_QUADRATURE_WEIGHTS = _QUADRATURE_WEIGHTS / _QUADRATURE_WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Outliers:
    """Outliers of a positive series, which are points far above the running median of the series."""

    indices: IntArray
    """Indices of the outliers, in order of their ratio to the running median, largest first."""
    ratios_to_median: FloatArray
    """Ratio of each point to the running median of the series, shape (n,)."""
    limit: float
    """Ratio that the largest ratios all exceed by chance with the requested probability."""
    count: int
    """Number of largest ratios that are jointly most significant; one of `_TESTED_RANKS`."""
    p_value: float
    """p-value: probability that equally many ratios, distributed like most of the series, are as large as the largest ones."""

    @property
    def largest_ratio(self) -> float:
        """Largest ratio of a point to the running median of the series."""
        return float(self.ratios_to_median.max())


def find_outliers(values: FloatArray, chance: float, factor: float) -> Outliers | None:
    """Return the values, positive and finite, that exceed `factor` times their running median and the limit for `chance`.

    Return None for fewer than 20 values. Logarithms of the ratios are compared: gradient norms of healthy runs are nearly
    log-normal, and thus have a lighter than exponential tail. Two tests share `chance` equally. One test extrapolates the tail
    from the median, which overestimates all tails except very heavy ones. The other test extrapolates from the upper quartile,
    and tests if more ratios exceed the largest fall than symmetric noise explains.
    """
    if len(values) < MIN_POINTS:
        return None
    logs = np.log(values)
    log_ratios = logs - median_filter(logs, size=min(_MAX_WINDOW, 2 * (len(values) // 4) + 1), mode="nearest")
    order = np.argsort(-log_ratios, kind="stable")
    tests = [t for t in (_test_from_median(log_ratios[order]), _test_from_quartile(log_ratios[order])) if t is not None]
    if not tests:
        return None
    test = min(tests, key=lambda t: t.p_value)
    p = len(tests) * test.p_value
    limit = max(_threshold_at_chance(test.tail, test.rank, len(values), chance / (len(tests) * len(_TESTED_RANKS))), test.floor)
    outlying = order[log_ratios[order] > max(limit, math.log(factor))] if p <= chance else order[:0]
    ratios = np.exp(np.minimum(log_ratios, 700.0))
    return Outliers(outlying, ratios, math.exp(min(limit, 700.0)), test.rank, min(1.0, p))


def corrected_p_values(tested: Sequence[Outliers | None]) -> FloatArray:
    """Return the p-value of each series, shape (n,), corrected for the number of series (Benjamini and Hochberg); 1 for None."""
    return np.asarray(stats.false_discovery_control([1.0 if o is None else o.p_value for o in tested]), dtype=np.float64)


class _OutlierTest(NamedTuple):
    """A test whether the largest logarithms of ratios are outliers."""

    p_value: float
    rank: int
    """Number of largest log ratios that are jointly most significant."""
    tail: ExponentialTail
    floor: float = 0.0
    """Minimum log ratio that counts as an outlier."""


def _test_from_median(largest_first: FloatArray) -> _OutlierTest | None:
    tail = upper_tail(largest_first, 0.5)
    return None if tail is None else _OutlierTest(*_lowest_p_value(largest_first, tail), tail)


def _test_from_quartile(largest_first: FloatArray) -> _OutlierTest | None:
    tail = upper_tail(largest_first, 0.75)
    if tail is None:
        return None
    (p, rank), fall = _lowest_p_value(largest_first, tail), max(float(-largest_first[-1]), 0.0)
    return _OutlierTest(max(p, 0.5 ** int((largest_first > fall).sum())), rank, tail, fall)


def _lowest_p_value(largest_first: FloatArray, tail: ExponentialTail) -> tuple[float, int]:
    """Return (p-value, rank) of the most significant rank, with a Bonferroni correction."""
    n, ranks = len(largest_first), [k for k in _TESTED_RANKS if k <= len(largest_first)]
    return min((len(ranks) * _chance_of_reaching(tail, float(largest_first[k - 1]), k, n), k) for k in ranks)


def _chance_of_reaching(tail: ExponentialTail, value: float, count: int, n: int) -> float:
    """Return the probability that `count` of n values with the tail reach `value`, averaged over the uncertainty of the tail's
    scale."""
    excess = max(value - tail.start_value, 0.0) / tail.scale
    shares = tail.values_above_base / n * np.exp(-np.minimum(excess * _possible_scale_ratios(tail.freedom), 700.0))
    return float(_QUADRATURE_WEIGHTS @ stats.binom.sf(count - 1, n, np.minimum(shares, 1.0)))


def _possible_scale_ratios(freedom: float) -> FloatArray:
    """Return possible ratios of the estimated scale to the true scale, at quadrature nodes of the normal distribution.

    The estimated scale is a mean of `freedom` exponential excesses, so the ratio has a gamma distribution (Wilson and Hilferty,
    1931).
    """
    spread = 1 / (9 * freedom)
    return np.asarray(np.maximum(1 - spread + np.sqrt(spread) * _NODES, 0.0) ** 3, dtype=np.float64)


def _threshold_at_chance(tail: ExponentialTail, count: int, n: int, chance: float) -> float:
    """Return the threshold that at least `count` of n values with the tail exceed with probability `chance`."""
    low, high = tail.start_value, tail.start_value + tail.scale
    if _chance_of_reaching(tail, low, count, n) <= chance:
        return low
    while _chance_of_reaching(tail, high, count, n) > chance and high - low < 1e6 * tail.scale:
        low, high = high, high + 2 * (high - low)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _chance_of_reaching(tail, middle, count, n) > chance else (low, middle)
    return high
