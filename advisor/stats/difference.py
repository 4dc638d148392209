"""Estimates the difference between the costs of two settings from their repeats. A lower cost is better."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import special

from advisor.model.space import FloatArray

SEED = 0
_MAX_ENUMERATED_PERMUTATIONS = 20_000
"""Maximum number of permutations to enumerate; beyond it, a tenth of this number is drawn at random."""
_MIN_PERMUTATIONS = 40
"""Minimum number of possible permutations for a permutation test; with fewer, no two-sided p-value can be below 5 %."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the mean costs of two settings, `one` and `other`, with its uncertainty."""

    gain: float
    """Mean cost of the setting `other` minus mean cost of the setting `one`; positive if `one` is better."""
    repeat_sd: float
    """Standard deviation of costs between repeats of a setting, pooled over both settings; NaN without repeats."""
    error: float
    """Standard error of the gain; NaN without repeats, as is the p-value."""
    freedom: float
    """Degrees of freedom of the standard error (Welch-Satterthwaite, or those of the pool)."""
    p_value: float
    """Two-sided p-value of the difference; NaN without repeats."""

    def chance_above(self, level: float = 0.0) -> float:
        """Return the probability that the true difference is above `level` (Student's t); NaN without repeats."""
        if math.isnan(self.error):
            return math.nan
        if self.error <= 0:
            return 1.0 if self.gain > level else 0.0
        return float(special.stdtr(self.freedom, (self.gain - level) / self.error))

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central confidence interval of the true difference at level `level`."""
        if math.isnan(self.error):
            return math.nan, math.nan
        half = float(special.stdtrit(self.freedom, 0.5 + level / 2)) * self.error if self.error > 0 else 0.0
        return self.gain - half, self.gain + half


def difference(one: FloatArray, other: FloatArray, pool: tuple[float, int] | None = None) -> Difference:
    """Compare the costs of the repeats of two settings, finite, shapes (n,) and (m,), n >= 1, m >= 1.

    With several repeats of both settings, the standard error is Welch's, and the p-value comes from a permutation test of the
    studentised difference, or from Welch's t-test for few permutations. Otherwise, the standard error comes from `pool`,
    (standard deviation, degrees of freedom) of repeats of any settings, or else from the repeats of the other setting.
    """
    n, m = len(one), len(other)
    gain = float(np.mean(other) - np.mean(one))
    if n > 1 and m > 1:
        parts = float(np.var(one, ddof=1)) / n, float(np.var(other, ddof=1)) / m
        variance = sum(parts)
        freedom = variance**2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1)) if variance > 0 else n + m - 2.0
        sd = math.sqrt((float(np.var(one, ddof=1)) + float(np.var(other, ddof=1))) / 2)
        error = math.sqrt(variance)
        exact = math.comb(n + m, n) >= _MIN_PERMUTATIONS
        p = _permutation_p_value(one, other) if exact else _t_test_p_value(gain, error, freedom)
        return Difference(gain, sd, error, freedom, p)
    pool = pool or pooled_deviation([one, other])
    if pool is None:
        return Difference(gain, math.nan, math.nan, math.nan, math.nan)
    error = pool[0] * math.sqrt(1 / n + 1 / m)
    return Difference(gain, pool[0], error, float(pool[1]), _t_test_p_value(gain, error, pool[1]))


def _t_test_p_value(gain: float, error: float, freedom: float) -> float:
    return float(2 * special.stdtr(freedom, -abs(gain) / error)) if error > 0 else float(gain == 0)


def pooled_deviation(groups: list[FloatArray]) -> tuple[float, int] | None:
    """Return (standard deviation within groups, degrees of freedom); None if no group has two or more values."""
    freedom = sum(len(g) - 1 for g in groups)
    if freedom < 1:
        return None
    return math.sqrt(sum(float(np.sum((g - np.mean(g)) ** 2)) for g in groups) / freedom), freedom


def p_value_of_larger_variance(one: tuple[float, int], other: tuple[float, int]) -> float:
    """Return the one-sided p-value of the hypothesis that the variance `one` is at most the variance `other`; 1 if `other` is 0,
    as for coarse results. one, other: as `pooled_deviation` returns them."""
    if other[0] <= 0:
        return 1.0
    return float(special.fdtrc(one[1], other[1], (one[0] / other[0]) ** 2))


def prediction_margin(variance: tuple[float, int], repeats: int, level: float) -> float:
    """Return the largest insignificant difference (one-sided) between the cost of one new run and the mean of `repeats` runs of
    a setting. variance: as `pooled_deviation` returns it."""
    return variance[0] * float(special.stdtrit(variance[1], 1 - level)) * math.sqrt(1 + 1 / repeats)


def _permutation_p_value(one: FloatArray, other: FloatArray) -> float:
    values, n = np.concatenate([one, other]), len(one)
    total = len(values)
    if math.comb(total, n) <= _MAX_ENUMERATED_PERMUTATIONS:
        members = np.zeros((math.comb(total, n), total), dtype=np.bool_)
        rows = np.array(list(combinations(range(total), n)))
        members[np.arange(len(rows))[:, None], rows] = True
    else:
        rng = np.random.default_rng(SEED)
        ranks = rng.random((_MAX_ENUMERATED_PERMUTATIONS // 10, total)).argsort(axis=1)
        members = np.vstack([np.arange(total)[None, :] < n, ranks < n])
    null = _welch_t(values, members, n)
    observed = abs(float(_welch_t(values, np.arange(total)[None, :] < n, n)[0]))
    return float(np.mean(np.abs(null) >= observed * (1 - 1e-9)))


def _welch_t(values: FloatArray, members: np.ndarray, n: int) -> FloatArray:
    """Return Welch's t, shape (k,), for k assignments of the values to two groups; inf for a difference without variance."""
    centred = values - values.mean()
    m = len(values) - n
    sums, squares = members @ centred, members @ centred**2
    other_sums, other_squares = centred.sum() - sums, (centred**2).sum() - squares
    variance = np.maximum(squares - sums**2 / n, 0) / (n * (n - 1))
    variance += np.maximum(other_squares - other_sums**2 / m, 0) / (m * (m - 1))
    gap = other_sums / m - sums / n
    scale = float(np.abs(centred).max(initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = gap / np.sqrt(variance)
    t[np.abs(gap) <= 1e-12 * scale] = 0.0
    return np.asarray(np.nan_to_num(t, posinf=np.inf, neginf=-np.inf), dtype=np.float64)


def repeats_needed(gain: float, sd: float, *, level: float = 0.05, power: float = 0.8, max_repeats: int = 1000) -> int:
    """Return the number of repeats of each setting, at least 2, with which a one-sided t-test at `level` detects `gain` with
    probability `power`; `max_repeats` + 1 if the gain is not positive or needs more repeats."""
    if not gain > 0:
        return max_repeats + 1
    if not sd > 0:
        return 2

    def power_of(n: int) -> float:
        freedom, shift = 2 * n - 2, gain / sd * math.sqrt(n / 2)
        limit = float(special.stdtrit(freedom, 1 - level))
        value = 1 - float(special.nctdtr(freedom, shift, limit))
        return value if math.isfinite(value) else float(special.ndtr(shift - limit))

    return 2 + bisect.bisect_left(range(2, max_repeats + 1), power, key=power_of)
