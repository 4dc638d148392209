"""Difference between two settings' costs, estimated from their repeats, and the number of repeats needed to detect it. Lower costs
are better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from advisor.model.space import FloatArray

SEED = 0
_MAX_EXACT = 20_000
"""Maximum number of permutations to enumerate; if more exist, a tenth of this number is drawn at random."""
_MIN_PERMUTATIONS = 40
"""Minimum number of permutations for a permutation test: with fewer, even perfect separation has a two-sided p > 5 %."""
_MIN_REPEATS = 4
"""Minimum number of repeats of a setting to test for a gap between their costs."""
_SIMULATIONS = 9_999
"""Number of simulated samples from which the p-value of a gap is computed."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between the mean costs of settings `one` and `other`, with its uncertainty."""

    gain: float
    """Mean cost of `other` minus mean cost of `one`; positive if `one` is better."""
    sd: float
    """Standard deviation of the costs between repeats, root mean square over both settings; NaN without repeats."""
    error: float
    """Standard error of the gain; NaN without repeats."""
    freedom: float
    """Degrees of freedom of the standard error (Welch-Satterthwaite, or those of the pooled estimate)."""
    p: float
    """Two-sided p-value under the hypothesis of no difference; NaN without repeats."""

    def chance_above(self, level: float = 0.0) -> float:
        """Return the probability that the true gain exceeds `level` (Student's t); NaN without repeats."""
        if math.isnan(self.error):
            return math.nan
        if self.error <= 0:
            return 1.0 if self.gain > level else 0.0
        return float(special.stdtr(self.freedom, (self.gain - level) / self.error))

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central confidence interval of the true gain."""
        if math.isnan(self.error):
            return math.nan, math.nan
        half = float(special.stdtrit(self.freedom, 0.5 + level / 2)) * self.error if self.error > 0 else 0.0
        return self.gain - half, self.gain + half


def difference(one: FloatArray, other: FloatArray, pool: tuple[float, int] | None = None) -> Difference:
    """Compare the costs of the repeats (n,) and (m,) of two settings, n, m >= 1, finite.

    If both settings have two or more repeats, the error is Welch's. In this case the p-value is that of a permutation test of the
    studentised difference, or of Welch's t-test if there are too few permutations. If a setting has only one run, the error is
    computed from `pool`: (standard deviation, degrees of freedom) of the repeats of any settings. If `pool` is None, the error is
    computed from the repeats of the other setting.
    """
    n, m = len(one), len(other)
    gain = float(np.mean(other) - np.mean(one))
    if n > 1 and m > 1:
        parts = float(np.var(one, ddof=1)) / n, float(np.var(other, ddof=1)) / m
        variance = sum(parts)
        freedom = variance**2 / (parts[0] ** 2 / (n - 1) + parts[1] ** 2 / (m - 1)) if variance > 0 else n + m - 2.0
        sd = math.sqrt((float(np.var(one, ddof=1)) + float(np.var(other, ddof=1))) / 2)
        p = _permutation_p(one, other) if math.comb(n + m, n) >= _MIN_PERMUTATIONS else math.nan
        return Difference(gain, sd, math.sqrt(variance), freedom, _p(gain, math.sqrt(variance), freedom, p))
    pool = pool or pooled([one, other])
    if pool is None:
        return Difference(gain, math.nan, math.nan, math.nan, math.nan)
    error = pool[0] * math.sqrt(1 / n + 1 / m)
    return Difference(gain, pool[0], error, float(pool[1]), _p(gain, error, float(pool[1]), math.nan))


def _p(gain: float, error: float, freedom: float, permuted: float) -> float:
    if not math.isnan(permuted):
        return permuted
    if error <= 0:
        return float(gain == 0)
    return float(2 * special.stdtr(freedom, -abs(gain) / error))


def pooled(groups: list[FloatArray]) -> tuple[float, int] | None:
    """Return (standard deviation within groups, degrees of freedom); None if no group has two or more values."""
    freedom = sum(len(g) - 1 for g in groups)
    if freedom < 1:
        return None
    return math.sqrt(sum(float(np.sum((g - np.mean(g)) ** 2)) for g in groups) / freedom), freedom


def prediction_margin(variance: tuple[float, int], repeats: int, level: float) -> float:
    """Return the largest difference between the cost of one new run and the mean of a setting's `repeats` runs that is not
    significant (one-sided).

    variance: (standard deviation, degrees of freedom), as from `pooled`.
    """
    return variance[0] * float(special.stdtrit(variance[1], 1 - level)) * math.sqrt(1 + 1 / repeats)


def _permutation_p(one: FloatArray, other: FloatArray) -> float:
    """Return the two-sided permutation p-value of the studentised difference."""
    values, n = np.concatenate([one, other]), len(one)
    total = len(values)
    if math.comb(total, n) <= _MAX_EXACT:
        from itertools import combinations

        members = np.zeros((math.comb(total, n), total), dtype=np.bool_)
        rows = np.array(list(combinations(range(total), n)))
        members[np.arange(len(rows))[:, None], rows] = True
    else:
        rng = np.random.default_rng(SEED)
        ranks = rng.random((_MAX_EXACT // 10, total)).argsort(axis=1)
        members = np.vstack([np.arange(total)[None, :] < n, ranks < n])
    null = _welch_t(values, members, n)
    observed = abs(float(_welch_t(values, np.arange(total)[None, :] < n, n)[0]))
    return float(np.mean(np.abs(null) >= observed * (1 - 1e-9)))


def _welch_t(values: FloatArray, members: np.ndarray, n: int) -> FloatArray:
    """Return Welch's t for each row of `members` (k, N), True for members of one group; inf for a difference without variance."""
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

    Return at least 2, and `max_repeats` + 1 if `max_repeats` repeats do not suffice or the gain is not positive.
    """
    if not gain > 0:
        return max_repeats + 1
    if not sd > 0:
        return 2
    low, high = 2, max_repeats + 1
    while low < high:
        n = (low + high) // 2
        if _power(gain / sd, n, level) >= power:
            high = n
        else:
            low = n + 1
    return low


def _power(size: float, n: int, level: float) -> float:
    freedom = 2 * n - 2
    limit = float(special.stdtrit(freedom, 1 - level))
    shift = size * math.sqrt(n / 2)
    value = 1 - float(special.nctdtr(freedom, shift, limit))
    return value if math.isfinite(value) else float(special.ndtr(shift - limit))


def chance_of_replication(result: Difference, level: float) -> float:
    """Return the probability that repeating the comparison is significant again in the same direction (two-sided at `level`).

    The observed gain is assumed to be the true gain.
    """
    if not result.error > 0:
        return float(result.gain != 0)
    limit = float(special.stdtrit(result.freedom, 1 - level / 2))
    return float(special.stdtr(result.freedom, abs(result.gain) / result.error - limit))


# --- gaps between repeats ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gap:
    """A split of one setting's repeats into two groups, separated by a gap in their costs."""

    minority: tuple[int, ...]
    """Indices of the repeats in the smaller group."""
    worse: bool
    """True if the smaller group has the worse costs."""
    p: float
    """p-value: probability that normally distributed repeats have a gap at least this wide."""


def widest_gap(costs: FloatArray) -> Gap | None:
    """Return the widest gap between the values (n,) of repeats, relative to the range of the larger group; None for n < 4.

    The p-value is simulated, to account for the selection of the widest gap.
    """
    n = len(costs)
    if n < _MIN_REPEATS or not np.ptp(costs) > 0:
        return None
    order = np.argsort(costs, kind="stable")
    ratios = _gap_ratios(costs[order][None, :])[0]
    cut = int(np.argmax(ratios))
    p = float((1 + np.sum(_simulated_ratios(n) >= ratios[cut])) / (_SIMULATIONS + 1))
    worse = cut + 1 >= n - cut - 1
    minority = order[cut + 1 :] if worse else order[: cut + 1]
    return Gap(tuple(sorted(minority.tolist())), worse, p)


def _gap_ratios(ordered: FloatArray) -> FloatArray:
    """Return the gap after each of the first n - 1 ordered values, divided by the range of the larger group; shape (k, n - 1).

    The smallest gap is added to that range, because values that look equal may differ by less than the metric's resolution.
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
        _gap_ratios(np.sort(rng.standard_normal((_SIMULATIONS, n)), axis=1)).max(axis=1), dtype=np.float64
    )
