"""Models the upper tail of the values or changes of a series, and finds outliers of positive series such as gradient norms.

The scale of random changes is estimated from the smaller half of the changes; an exponential tail with this scale bounds the
largest change by chance. The bound is conservative for lighter tails, such as those of normal noise. Up to a quarter of the
series may be outliers; more would inflate the scale.
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
"""Minimum number of independent changes for their tail to begin at the upper quartile."""


@dataclass(frozen=True, slots=True)
class ExponentialTail:
    """An exponential upper tail of the values of a series."""

    start_value: float
    scale: float
    """Mean excess over the start, estimated from the smaller half of the excesses."""
    values_above_base: float
    """Number of values in the tail, of which the largest is tested."""
    freedom: float
    """Number of independent excesses that determine the scale."""

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
    """Return the tail of finite values, shape (n,), above their quantile `begin`; None for fewer than 4 values above it."""
    base = float(np.quantile(values, begin)) if len(values) else 0.0
    excesses = np.sort(values[values > base]) - base
    return _fit_tail(excesses, base, len(excesses), 1.0) if len(excesses) >= 4 else None


def tail_of_level_changes(moves: FloatArray, width: int) -> ExponentialTail | None:
    """Return the upper tail of changes between levels of `width` points; None for fewer than 4 changes above the median.

    Falls and rises together determine the scale, because noise causes both alike. The tail of many changes begins at their
    upper quartile, where lighter tails yield a lower bound. Neighbouring changes share points, so only changes half a width
    apart count as independent; with that, error rates never exceeded the nominal level in simulated noise, even heavy-tailed or
    autocorrelated noise.
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
    """Return the tail of sorted excesses. Only the number of those above the median counts, so outliers have no effect."""
    half = max(len(excess) // 2, 1)
    scale = (float(excess[:half].sum()) + (len(excess) - half) * float(excess[half - 1])) / half
    return ExponentialTail(base, max(scale, 1e-300), tries, max(half / overlap, 1.0))


# --- outliers of a positive series -----------------------------------------------------------------------------------------------


_MAX_WINDOW = 31
"""Maximum width of the running median, in points."""
_TESTED_RANKS = (1, 2, 4, 8, 16)
"""Ranks from the largest ratio at which outliers are tested."""
_NODES, _QUADRATURE_WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
_QUADRATURE_WEIGHTS = _QUADRATURE_WEIGHTS / _QUADRATURE_WEIGHTS.sum()


@dataclass(frozen=True, slots=True)
class Outliers:
    """Points of a positive series far above its running median."""

    indices: IntArray
    """Indices of the outliers, in order of their ratio to the running median, largest first."""
    ratios_to_median: FloatArray
    """Ratio of each point to the running median, shape (n,)."""
    limit: float
    """Ratio that the largest ratios all exceed by chance with the requested probability."""
    count: int
    """Number of largest ratios that are jointly most significant."""
    p_value: float
    """Probability that equally many ratios, distributed like most of the series, are as large."""

    @property
    def largest_ratio(self) -> float:
        """Largest ratio of a point to the running median of the series."""
        return float(self.ratios_to_median.max())


def find_outliers(values: FloatArray, chance: float, factor: float) -> Outliers | None:
    """Return the values, positive and finite, that exceed `factor` times their running median and the limit for `chance`; None
    for fewer than 20 values.

    Logarithms of the ratios are compared: gradient norms of healthy runs are nearly log-normal, with a lighter than exponential
    tail. Two tests share `chance`: one extrapolates the tail from the median, which overestimates all but very heavy tails; the
    other extrapolates from the upper quartile, and tests if more ratios exceed the largest fall than symmetric noise explains.
    """
    if len(values) < MIN_POINTS:
        return None
    logs = np.log(values)
    log_ratios = logs - median_filter(logs, size=min(_MAX_WINDOW, 2 * (len(values) // 4) + 1), mode="nearest")
    order = np.argsort(-log_ratios, kind="stable")
    tests = _outlier_tests(log_ratios[order])
    if not tests:
        return None
    test = min(tests, key=lambda t: t.p_value)
    p = len(tests) * test.p_value
    limit = max(_threshold_at_chance(test.tail, test.rank, len(values), chance / (len(tests) * len(_TESTED_RANKS))), test.floor)
    outlying = order[log_ratios[order] > max(limit, math.log(factor))] if p <= chance else order[:0]
    ratios = np.exp(np.minimum(log_ratios, 700.0))
    return Outliers(outlying, ratios, math.exp(min(limit, 700.0)), test.rank, min(1.0, p))


def corrected_p_values(tested: Sequence[Outliers | None]) -> FloatArray:
    """Return the p-value of each series, (n,), corrected for their number (Benjamini and Hochberg); 1 for None."""
    return np.asarray(stats.false_discovery_control([1.0 if o is None else o.p_value for o in tested]), dtype=np.float64)


class _OutlierTest(NamedTuple):
    """Whether the largest logarithms of ratios are outliers."""

    p_value: float
    rank: int
    """Number of largest log ratios that are jointly most significant."""
    tail: ExponentialTail
    floor: float = 0.0
    """Minimum log ratio that counts as an outlier."""


def _outlier_tests(largest_first: FloatArray) -> list[_OutlierTest]:
    tests = []
    if (tail := upper_tail(largest_first, 0.5)) is not None:
        tests.append(_OutlierTest(*_lowest_p_value(largest_first, tail), tail))
    if (tail := upper_tail(largest_first, 0.75)) is not None:
        (p, rank), fall = _lowest_p_value(largest_first, tail), max(float(-largest_first[-1]), 0.0)
        tests.append(_OutlierTest(max(p, 0.5 ** int((largest_first > fall).sum())), rank, tail, fall))
    return tests


def _lowest_p_value(largest_first: FloatArray, tail: ExponentialTail) -> tuple[float, int]:
    """Return (p-value, rank) of the most significant rank, with a Bonferroni correction."""
    n, ranks = len(largest_first), [k for k in _TESTED_RANKS if k <= len(largest_first)]
    return min((len(ranks) * _chance_of_reaching(tail, float(largest_first[k - 1]), k, n), k) for k in ranks)


def _chance_of_reaching(tail: ExponentialTail, value: float, count: int, n: int) -> float:
    """Return the probability that `count` of n values reach `value`, averaged over the uncertainty of the tail's scale."""
    excess = max(value - tail.start_value, 0.0) / tail.scale
    # The scale is a mean of `freedom` exponential excesses, so the ratio of the estimated to the true scale has a gamma
    # distribution; its cube root is nearly normal (Wilson and Hilferty, 1931).
    spread = 1 / (9 * tail.freedom)
    scale_ratios = np.maximum(1 - spread + math.sqrt(spread) * _NODES, 0.0) ** 3
    shares = tail.values_above_base / n * np.exp(-np.minimum(excess * scale_ratios, 700.0))
    return float(_QUADRATURE_WEIGHTS @ stats.binom.sf(count - 1, n, np.minimum(shares, 1.0)))


def _threshold_at_chance(tail: ExponentialTail, count: int, n: int, chance: float) -> float:
    """Return the threshold that at least `count` of n values exceed with probability `chance`."""
    low, high = tail.start_value, tail.start_value + tail.scale
    if _chance_of_reaching(tail, low, count, n) <= chance:
        return low
    while _chance_of_reaching(tail, high, count, n) > chance and high - low < 1e6 * tail.scale:
        low, high = high, high + 2 * (high - low)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _chance_of_reaching(tail, middle, count, n) > chance else (low, middle)
    return high
