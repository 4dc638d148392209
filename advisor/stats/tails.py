"""Models the upper tail of the values or changes of a series, and finds outliers of positive series such as gradient norms.

The scale of random changes is estimated from the smaller half of the changes. An exponential tail with this scale bounds the
largest change that noise may cause. The bound is conservative for lighter tails, such as that of normal noise. Up to a quarter of
the series may be outliers; more outliers would inflate the scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import FloatArray, IntArray

MIN_POINTS = 20
"""Minimum number of points of a series to estimate the size of its random changes."""
MIN_CHANGES_FOR_QUARTILE = 80
"""Minimum number of independent changes for which the tail of their distribution begins at the upper quartile."""


@dataclass(frozen=True, slots=True)
class ExponentialTail:
    """An exponential upper tail of the values of a series."""

    start_value: float
    scale: float
    """Mean excess of values over `start_value`, estimated from the smaller half of the excesses."""
    value_count: float
    """Number of values in the tail. Tests compare the largest value in the tail with chance."""
    freedom: float
    """Number of independent excesses that determine the scale."""

    def p_value(self, value: float) -> float:
        """Return the probability that the largest value in the tail reaches `value` by chance; exact for an exponential tail."""
        excess = value - self.start_value
        if not excess > 0:
            return 1.0
        return min(1.0, self.value_count * math.exp(-self.freedom * math.log1p(excess / (self.freedom * self.scale))))

    def limit(self, chance: float) -> float:
        """Return the level that the largest value in the tail exceeds with probability `chance`."""
        relative_excess = math.expm1(math.log(max(self.value_count / chance, 1.0)) / self.freedom)
        return self.start_value + self.freedom * self.scale * relative_excess


def upper_tail(values: FloatArray, begin: float = 0.5) -> ExponentialTail | None:
    """Return the tail of finite values, shape (n,), above their quantile `begin`; None if fewer than 4 values lie above."""
    start_value = float(np.quantile(values, begin)) if len(values) else 0.0
    excesses = np.sort(values[values > start_value]) - start_value
    return _fit_tail(excesses, start_value, len(excesses), 1.0) if len(excesses) >= 4 else None


def tail_of_level_changes(moves: FloatArray, width: int) -> ExponentialTail | None:
    """Return the upper tail of changes between levels of `width` points; None for fewer than 4 changes above the median.

    Falls and rises together determine the scale, because noise causes both alike. If there are many changes, their tail begins
    at their upper quartile, which yields a tighter bound for lighter tails. Neighbouring changes share points, so only changes
    half a width apart count as independent."""
    middle = float(np.median(moves)) if len(moves) else 0.0
    count = int(np.count_nonzero(moves > middle))
    if count < 4:
        return None
    distances = np.sort(np.abs(moves - middle))
    overlap = (width + 1) // 2
    half = len(distances) // 2
    if len(distances) < MIN_CHANGES_FOR_QUARTILE * overlap or distances[-1] <= distances[half]:
        return _fit_tail(distances, middle, count, overlap)
    return _fit_tail(distances[half:] - distances[half], middle + float(distances[half]), count / 2, overlap)


def _fit_tail(excess: FloatArray, base: float, tries: float, overlap: float) -> ExponentialTail:
    """Return the tail of sorted excesses. Only the number of excesses above the median counts, so outliers have no effect."""
    half_count = max(len(excess) // 2, 1)
    mean_excess = (float(excess[:half_count].sum()) + (len(excess) - half_count) * float(excess[half_count - 1])) / half_count
    return ExponentialTail(base, max(mean_excess, 1e-300), tries, max(half_count / overlap, 1.0))


# --- outliers of a positive series -----------------------------------------------------------------------------------------------


_MAX_WINDOW = 31
_TESTED_RANKS = (1, 2, 4, 8, 16)
"""Numbers of largest ratios that are tested together as outliers."""
_NODES, _QUADRATURE_WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
_QUADRATURE_WEIGHTS = _QUADRATURE_WEIGHTS / _QUADRATURE_WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Outliers:
    """Points of a positive series far above its running median."""

    indices: IntArray
    """Indices of the outliers, ordered by their ratio to the running median, largest first."""
    ratios_to_median: FloatArray
    """Ratio of each point to the running median, shape (n,)."""
    limit: float
    """Ratio that the `count` largest ratios all exceed by chance with the requested probability."""
    count: int
    """Number of largest ratios that are jointly most significant."""
    p_value: float
    """Probability that noise, distributed like most of the series, makes as many ratios as large."""

    @property
    def largest_ratio(self) -> float:
        """Largest ratio of a point to the running median of the series."""
        return float(self.ratios_to_median.max())


def find_outliers(values: FloatArray, chance: float, factor: float) -> Outliers | None:
    """Return the outliers of positive finite values: those whose ratio to the running median exceeds `factor` and the limit that
    noise exceeds with probability `chance`. None for fewer than 20 values.

    Logarithms of the ratios are compared, because gradient norms of healthy runs are nearly log-normal, and their logarithms
    have a lighter than exponential tail. Two tests share `chance`. The first test extrapolates the tail from the median, which
    overestimates all but very heavy tails. The second test extrapolates the tail from the upper quartile, and also tests
    whether more ratios exceed the largest fall than symmetric noise explains.
    """
    if len(values) < MIN_POINTS:
        return None
    log_values = np.log(values)
    log_ratios = log_values - median_filter(log_values, size=min(_MAX_WINDOW, 2 * (len(values) // 4) + 1), mode="nearest")
    largest_first = np.argsort(-log_ratios, kind="stable")
    tests = _outlier_tests(log_ratios[largest_first])
    if not tests:
        return None
    best = min(tests, key=lambda t: t.p_value)
    p = len(tests) * best.p_value
    level = chance / (len(tests) * len(_TESTED_RANKS))
    log_limit = max(_threshold_at_chance(best.tail, best.rank, len(values), level), best.floor)
    indices = largest_first[log_ratios[largest_first] > max(log_limit, math.log(factor))] if p <= chance else largest_first[:0]
    ratios = np.exp(np.minimum(log_ratios, 700.0))
    return Outliers(indices, ratios, math.exp(min(log_limit, 700.0)), best.rank, min(1.0, p))


def corrected_p_values(tested: Sequence[Outliers | None]) -> FloatArray:
    """Return the p-value of each series, corrected for the number of series (Benjamini and Hochberg), shape (n,); 1 for None."""
    return np.asarray(stats.false_discovery_control([1.0 if o is None else o.p_value for o in tested]), dtype=np.float64)


class _OutlierTest(NamedTuple):
    p_value: float
    rank: int
    tail: ExponentialTail
    floor: float = 0.0


def _outlier_tests(largest_first: FloatArray) -> list[_OutlierTest]:
    tests = []
    if (tail := upper_tail(largest_first, 0.5)) is not None:
        tests.append(_OutlierTest(*_lowest_p_value(largest_first, tail), tail))
    if (tail := upper_tail(largest_first, 0.75)) is not None:
        (p, rank), fall = _lowest_p_value(largest_first, tail), max(float(-largest_first[-1]), 0.0)
        tests.append(_OutlierTest(max(p, 0.5 ** int((largest_first > fall).sum())), rank, tail, fall))
    return tests


def _lowest_p_value(largest_first: FloatArray, tail: ExponentialTail) -> tuple[float, int]:
    n, ranks = len(largest_first), [k for k in _TESTED_RANKS if k <= len(largest_first)]
    return min((len(ranks) * _chance_of_reaching(tail, float(largest_first[k - 1]), k, n), k) for k in ranks)


def _chance_of_reaching(tail: ExponentialTail, value: float, count: int, n: int) -> float:
    """Return the probability that `count` of n values reach `value`, averaged over the uncertainty of the tail's scale."""
    scaled_excess = max(value - tail.start_value, 0.0) / tail.scale
    # The scale is a mean of `freedom` exponential excesses, so the ratio of the estimated to the true scale has a gamma
    # distribution; its cube root is nearly normal (Wilson and Hilferty, 1931).
    relative_variance = 1 / (9 * tail.freedom)
    scale_ratios = np.maximum(1 - relative_variance + math.sqrt(relative_variance) * _NODES, 0.0) ** 3
    chances_per_value = tail.value_count / n * np.exp(-np.minimum(scaled_excess * scale_ratios, 700.0))
    return float(_QUADRATURE_WEIGHTS @ stats.binom.sf(count - 1, n, np.minimum(chances_per_value, 1.0)))


def _threshold_at_chance(tail: ExponentialTail, count: int, n: int, chance: float) -> float:
    low, high = tail.start_value, tail.start_value + tail.scale
    if _chance_of_reaching(tail, low, count, n) <= chance:
        return low
    while _chance_of_reaching(tail, high, count, n) > chance and high - low < 1e6 * tail.scale:
        low, high = high, high + 2 * (high - low)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _chance_of_reaching(tail, middle, count, n) > chance else (low, middle)
    return high
