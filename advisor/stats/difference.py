"""Estimates the difference between the costs of two settings from their repeats, and the number of repeats that detect a
difference. A lower cost is better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from advisor.model.space import FloatArray

SEED = 0
_MAX_ENUMERATED_PERMUTATIONS = 20_000
"""Maximum number of permutations to enumerate; if there are more, a tenth of this number is drawn at random."""
_MIN_PERMUTATIONS = 40
"""Minimum number of possible permutations for a permutation test; with fewer, no two-sided p-value can be below 5 %."""
_MIN_REPEATS = 4
"""Minimum number of repeats of one setting to test for a gap between their costs."""
_NUMBER_OF_SIMULATIONS = 9_999
"""Number of simulated samples from which the p-value of a gap is computed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the mean costs of two settings, `one` and `other`, with its uncertainty."""

    gain: float
    """Mean cost of the setting `other` minus mean cost of the setting `one`; positive if `one` is better."""
    repeat_sd: float
    """Standard deviation of costs between repeats of a setting, pooled over both settings; NaN without repeats."""
    error: float
    """Standard error of the difference; NaN without repeats."""
    freedom: float
    """Degrees of freedom of the standard error (Welch-Satterthwaite, or from the pooled repeats)."""
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

    If both settings have several repeats, the standard error is Welch's. The p-value then comes from a permutation test of the
    studentised difference, or from Welch's t-test for few permutations. If a setting has a single run, the standard error comes
    from `pool`: (standard deviation, degrees of freedom) of repeats of any settings. If `pool` is None, the repeats of the
    other setting determine the standard error.
    """
    n, m = len(one), len(other)
    gain = float(np.mean(other) - np.mean(one))
    if n > 1 and m > 1:
        parts = float(np.var(one, ddof=1)) / n, float(np.var(other, ddof=1)) / m
        variance = sum(parts)
        freedom = variance**2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1)) if variance > 0 else n + m - 2.0
        sd = math.sqrt((float(np.var(one, ddof=1)) + float(np.var(other, ddof=1))) / 2)
        p = _permutation_p_value(one, other) if math.comb(n + m, n) >= _MIN_PERMUTATIONS else math.nan
        return Difference(gain, sd, math.sqrt(variance), freedom, _compute_p_value(gain, math.sqrt(variance), freedom, p))
    pool = pool or pooled_deviation([one, other])
    if pool is None:
        return Difference(gain, math.nan, math.nan, math.nan, math.nan)
    error = pool[0] * math.sqrt(1 / n + 1 / m)
    return Difference(gain, pool[0], error, float(pool[1]), _compute_p_value(gain, error, float(pool[1]), math.nan))


def _compute_p_value(gain: float, error: float, freedom: float, permuted: float) -> float:
    if not math.isnan(permuted):
        return permuted
    if error <= 0:
        return float(gain == 0)
    return float(2 * special.stdtr(freedom, -abs(gain) / error))


def pooled_deviation(groups: list[FloatArray]) -> tuple[float, int] | None:
    """Return (standard deviation within groups, degrees of freedom); None if no group has two or more values."""
    freedom = sum(len(g) - 1 for g in groups)
    if freedom < 1:
        return None
    return math.sqrt(sum(float(np.sum((g - np.mean(g)) ** 2)) for g in groups) / freedom), freedom


def prediction_margin(variance: tuple[float, int], repeats: int, level: float) -> float:
    """Return the largest insignificant difference (one-sided) between the cost of one new run and the mean of `repeats` runs of
    a setting.

    variance: (standard deviation, degrees of freedom), as `pooled_deviation` returns them.
    """
    return variance[0] * float(special.stdtrit(variance[1], 1 - level)) * math.sqrt(1 + 1 / repeats)


def _permutation_p_value(one: FloatArray, other: FloatArray) -> float:
    """Return the two-sided p-value of the studentised difference from a permutation test."""
    values, n = np.concatenate([one, other]), len(one)
    total = len(values)
    if math.comb(total, n) <= _MAX_ENUMERATED_PERMUTATIONS:
        from itertools import combinations

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
    """Return the number of repeats of each setting with which a one-sided t-test at `level` detects `gain` with probability
    `power`.

    The result is at least 2; it is `max_repeats` + 1 if the gain is not positive or needs more repeats.
    """
    if not gain > 0:
        return max_repeats + 1
    if not sd > 0:
        return 2
    low, high = 2, max_repeats + 1
    while low < high:
        n = (low + high) // 2
        if _power_of_t_test(gain / sd, n, level) >= power:
            high = n
        else:
            low = n + 1
    return low


def _power_of_t_test(size: float, n: int, level: float) -> float:
    freedom = 2 * n - 2
    limit = float(special.stdtrit(freedom, 1 - level))
    shift = size * math.sqrt(n / 2)
    value = 1 - float(special.nctdtr(freedom, shift, limit))
    return value if math.isfinite(value) else float(special.ndtr(shift - limit))


def chance_of_replication(result: Difference, level: float) -> float:
    """Return the probability that the same comparison, if repeated, is significant in the same direction (two-sided at
    `level`).

    The observed difference is assumed to be the true one.
    """
    if not result.error > 0:
        return float(result.gain != 0)
    limit = float(special.stdtrit(result.freedom, 1 - level / 2))
    return float(special.stdtr(result.freedom, abs(result.gain) / result.error - limit))


# --- gaps between repeats ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CostGap:
    """A gap in the costs of the repeats of one setting, which splits the repeats into two groups."""

    smaller_group: tuple[int, ...]
    """Indices of the repeats in the smaller group."""
    is_smaller_group_worse: bool
    """True if the smaller group has the worse costs."""
    p_value: float
    """p-value: probability of a gap at least this wide if the repeats are normally distributed."""


def widest_cost_gap(costs: FloatArray) -> CostGap | None:
    """Return the widest gap between the costs of repeats, relative to the range of the larger group; None for fewer than 4
    repeats.

    The p-value is simulated, because it must account for choosing the widest of several gaps.
    """
    n = len(costs)
    if n < _MIN_REPEATS or not np.ptp(costs) > 0:
        return None
    order = np.argsort(costs, kind="stable")
    ratios = _gap_ratios(costs[order][None, :])[0]
    cut = int(np.argmax(ratios))
    p = float((1 + np.sum(_simulated_ratios(n) >= ratios[cut])) / (_NUMBER_OF_SIMULATIONS + 1))
    worse = cut + 1 >= n - cut - 1
    smaller_group = order[cut + 1 :] if worse else order[: cut + 1]
    return CostGap(tuple(sorted(smaller_group.tolist())), worse, p)


def _gap_ratios(ordered: FloatArray) -> FloatArray:
    """Return each gap between neighbouring ordered values, divided by the range of the larger group, shape (k, n - 1).

    The smallest gap is added to the range, because values that look equal may differ by less than the resolution of the metric.
    """
    n = ordered.shape[1]
    gaps = np.diff(ordered, axis=1)
    below, above = ordered[:, :-1] - ordered[:, :1], ordered[:, -1:] - ordered[:, 1:]
    larger = np.where(np.arange(1, n) >= n - np.arange(1, n), below, above)
    resolution = np.min(np.where(gaps > 0, gaps, np.inf), axis=1, keepdims=True)
    return np.asarray(gaps / (larger + resolution), dtype=np.float64)


@lru_cache(maxsize=64)
def _simulated_ratios(n: int) -> FloatArray:
    rng = np.random.default_rng(SEED)
    return np.asarray(
        _gap_ratios(np.sort(rng.standard_normal((_NUMBER_OF_SIMULATIONS, n)), axis=1)).max(axis=1), dtype=np.float64
    )
