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
"""Maximum number of permutations to enumerate; if there are more, a tenth of this number is drawn at random."""
_MIN_PERMUTATIONS = 40
"""Minimum number of possible permutations for a permutation test; with fewer, no two-sided p-value is below 5 %."""


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
    """Degrees of freedom of the standard error: by Welch-Satterthwaite, or of the pooled standard deviation."""
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
        half_width = float(special.stdtrit(self.freedom, 0.5 + level / 2)) * self.error if self.error > 0 else 0.0
        return self.gain - half_width, self.gain + half_width


def difference(one: FloatArray, other: FloatArray, pool: tuple[float, int] | None = None) -> Difference:
    """Compare the costs of the repeats of two settings, finite, shapes (n,) and (m,), n >= 1, m >= 1.

    With several repeats of both settings, the standard error is Welch's. The p-value then comes from a permutation test of the
    studentised difference or, if there are few permutations, from Welch's t-test. Otherwise, the standard error comes from `pool`,
    (standard deviation, degrees of freedom) between repeats of any settings, or else from the setting that has repeats.
    """
    n, m = len(one), len(other)
    gain = float(np.mean(other) - np.mean(one))
    if n > 1 and m > 1:
        variances = float(np.var(one, ddof=1)), float(np.var(other, ddof=1))
        a, b = variances[0] / n, variances[1] / m
        freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1)) if a + b > 0 else n + m - 2.0
        error, has_permutations = math.sqrt(a + b), math.comb(n + m, n) >= _MIN_PERMUTATIONS
        p = _permutation_p_value(one, other) if has_permutations else _t_test_p_value(gain, error, freedom)
        return Difference(gain, math.sqrt(sum(variances) / 2), error, freedom, p)
    pool = pool or pooled_deviation([one, other])
    if pool is None:
        return Difference(gain, math.nan, math.nan, math.nan, math.nan)
    error = pool[0] * math.sqrt(1 / n + 1 / m)
    return Difference(gain, pool[0], error, float(pool[1]), _t_test_p_value(gain, error, pool[1]))


def _t_test_p_value(gain: float, error: float, freedom: float) -> float:
    return float(2 * special.stdtr(freedom, -abs(gain) / error)) if error > 0 else float(gain == 0)


def pooled_deviation(groups: list[FloatArray]) -> tuple[float, int] | None:
    """Return (standard deviation within groups, degrees of freedom); None if no group has two or more values."""
    degrees_of_freedom = sum(len(g) - 1 for g in groups)
    if degrees_of_freedom < 1:
        return None
    return math.sqrt(sum(float(np.sum((g - np.mean(g)) ** 2)) for g in groups) / degrees_of_freedom), degrees_of_freedom


def p_value_of_larger_variance(one: tuple[float, int], other: tuple[float, int]) -> float:
    """Return the one-sided p-value of the hypothesis that `one` has at most the variance of `other`; 1 if `other` has variance 0,
    as coarse results do. one, other: (standard deviation, degrees of freedom)."""
    if other[0] <= 0:
        return 1.0
    return float(special.fdtrc(one[1], other[1], (one[0] / other[0]) ** 2))


def max_insignificant_difference(variance: tuple[float, int], repeats: int, level: float) -> float:
    """Return the largest insignificant difference (one-sided) between the cost of one new run and the mean of `repeats` runs of a
    setting. variance: (standard deviation, degrees of freedom) between runs."""
    return variance[0] * float(special.stdtrit(variance[1], 1 - level)) * math.sqrt(1 + 1 / repeats)


def _permutation_p_value(one: FloatArray, other: FloatArray) -> float:
    values, n = np.concatenate([one, other]), len(one)
    total = len(values)
    if math.comb(total, n) <= _MAX_ENUMERATED_PERMUTATIONS:
        is_first = np.zeros((math.comb(total, n), total), dtype=np.bool_)
        groups = np.array(list(combinations(range(total), n)))
        is_first[np.arange(len(groups))[:, None], groups] = True
    else:
        rng = np.random.default_rng(SEED)
        random_orders = rng.random((_MAX_ENUMERATED_PERMUTATIONS // 10, total)).argsort(axis=1)
        is_first = np.vstack([np.arange(total)[None, :] < n, random_orders < n])
    permuted_t = _welch_t(values, is_first, n)
    observed_t = abs(float(_welch_t(values, np.arange(total)[None, :] < n, n)[0]))
    return float(np.mean(np.abs(permuted_t) >= observed_t * (1 - 1e-9)))


def _welch_t(values: FloatArray, is_first_group: np.ndarray, n: int) -> FloatArray:
    """Return Welch's t, shape (k,), for k assignments of the values to two groups, with masks of shape (k, number of values); inf
    if the groups differ and have no variance."""
    centred_values = values - values.mean()
    m = len(values) - n
    sums, squares = is_first_group @ centred_values, is_first_group @ centred_values**2
    other_sums, other_squares = centred_values.sum() - sums, (centred_values**2).sum() - squares
    variance = np.maximum(squares - sums**2 / n, 0) / (n * (n - 1))
    variance += np.maximum(other_squares - other_sums**2 / m, 0) / (m * (m - 1))
    gap = other_sums / m - sums / n
    largest_value = float(np.abs(centred_values).max(initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = gap / np.sqrt(variance)
    t[np.abs(gap) <= 1e-12 * largest_value] = 0.0
    return np.asarray(np.nan_to_num(t, posinf=np.inf, neginf=-np.inf), dtype=np.float64)


def repeats_needed(gain: float, sd: float, *, level: float = 0.05, power: float = 0.8, max_repeats: int = 1000) -> int:
    """Return the number of repeats of each setting, at least 2, with which a one-sided t-test at `level` detects `gain` with
    probability `power`. Return `max_repeats` + 1 if the gain is not positive or needs more repeats than `max_repeats`."""
    if not gain > 0:
        return max_repeats + 1
    if not sd > 0:
        return 2

    def power_of(n: int) -> float:
        freedom, shift = 2 * n - 2, gain / sd * math.sqrt(n / 2)
        critical_t = float(special.stdtrit(freedom, 1 - level))
        power_of_n = 1 - float(special.nctdtr(freedom, shift, critical_t))
        return power_of_n if math.isfinite(power_of_n) else float(special.ndtr(shift - critical_t))

    return 2 + bisect.bisect_left(range(2, max_repeats + 1), power, key=power_of)
