"""Computes the exact expected cost of the best of n trials, as a function of n. Lower costs are better, and a cost of NaN marks
a failed trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import gammaln

from advisor.model.space import FloatArray


def chance_of_better_trial(costs: FloatArray, n: int, level: float) -> float:
    """Return the probability that the lowest of `n` costs, drawn without replacement from `costs`, shape (N,), is below
    `level`."""
    return 1 - chance_of_no_target(len(costs), min(n, len(costs)), int(np.sum(costs < level)))


def expected_gain(costs: FloatArray, further_trials: int, margin: float = 0.0) -> tuple[float, float]:
    """Return (probability, expected size) of an improvement by `further_trials` more trials that are exchangeable with the
    given ones.

    An improvement is a cost more than `margin` below the lowest earlier cost; its size is the difference of these costs. The
    results are exact for a random subset of the trials that is extended to all of them, by the factor by which the new trials
    extend the given ones. Improvements become smaller with more trials, so the returned size tends to be too high.
    """
    ordered = _sorted_costs(costs)
    total, gaps = len(ordered), ordered - ordered[0]
    drawn = max(round(total * total / (total + further_trials)), 1)
    alike = int(np.sum(gaps <= margin))
    none = np.array([chance_of_no_target(total, drawn, rank) for rank in range(total + 1)])
    chance, best = float(none[alike]), -np.diff(none)
    return chance, float(best[alike:] @ gaps[alike:]) / chance if chance > 0 else 0.0


def chance_of_no_target(total: int, number_drawn: int, targets: int) -> float:
    """Return the probability that none of `targets` items is among `number_drawn` items drawn from `total` (hypergeometric
    distribution)."""
    if number_drawn > total - targets:
        return 0.0
    return math.exp(_log_choose(total - targets, number_drawn) - _log_choose(total, number_drawn))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def p_value_of_late_group(sizes: Sequence[int], ranks: Sequence[int], items_ahead: int) -> float:
    """Return the p-value of a group that comes late in an order: its item with the rank in `ranks` follows `items_ahead` items
    of all groups.

    The p-value bounds the probability that, in a random order, some group has fewer items than this rank among the first
    `items_ahead` items (hypergeometric distribution, summed over groups). sizes, ranks: one value per group; rank 1 is the best
    item of a group.
    """
    total = sum(sizes)
    chances = [stats.hypergeom.cdf(rank - 1, total, size, items_ahead) for size, rank in zip(sizes, ranks, strict=True)]
    return min(math.fsum(map(float, chances)), 1.0)


@dataclass(frozen=True)
class HalvingLoss:
    """Expected difference between the best cost of a random half of the trials and the best cost of all trials."""

    expected_loss: float
    """The expected difference, computed exactly from the sorted costs of the trials."""
    shape: float
    """Shape parameter of a gamma distribution of the loss over random studies of the same size and search space."""

    def interval(self, level: float) -> tuple[float, float]:
        """Return (low, high) one-sided bounds, each at level `level`, of the expected loss in other studies of the search
        space."""
        if not self.expected_loss > 0:
            return 0.0, 0.0
        high, low = stats.gamma.ppf([1 - level, level], self.shape) / self.shape
        return self.expected_loss / float(low), self.expected_loss / float(high)

    def chance_above(self, level: float) -> float:
        """Return the probability that the expected loss in another study of the search space exceeds `level`."""
        if level <= 0 or not self.expected_loss > 0:
            return float(self.expected_loss > level)
        return float(stats.gamma.cdf(self.shape * (self.expected_loss / level), self.shape))


def expected_best(costs: FloatArray, n: float) -> float:
    """Return the expected lowest cost of n trials that are drawn without replacement. A failed trial counts as the worst
    result.

    n lies between 1 and the number of trials and may be fractional.
    """
    ordered = _sorted_costs(costs)
    return float(ordered[0] + _chances_below_rank(len(ordered), n) @ np.diff(ordered))


def quantiles_of_best(costs: FloatArray, n: int, levels: FloatArray) -> FloatArray:
    """Return the quantiles, shape (k,), at `levels` from 0 to 1, of the lowest of n costs drawn with replacement from `costs`,
    shape (N,), N >= 1.

    The quantiles are the limit of a bootstrap: one of the k best trials is drawn with probability 1 - (1 - k/N)^n. A quantile
    is infinite if it falls on a failed trial.
    """
    ordered = np.sort(np.where(np.isnan(costs), np.inf, costs))
    return ordered[[rank_of_best(len(ordered), n, level) - 1 for level in levels.tolist()]]


def rank_of_best(total: int, n: int, level: float) -> int:
    """Return the `level` quantile of the rank of the best of n trials drawn with replacement from `total` trials; rank 1 is the
    best."""
    rank = math.ceil(-total * math.expm1(math.log1p(-level) / n) - 1e-9) if level < 1 else total
    return min(max(rank, 1), total)


def loss_of_halving(costs: FloatArray) -> HalvingLoss:
    """Return the expected loss if only half as many trials had run. costs: shape (n,), n >= 4, at least one of them not NaN.

    The loss is a weighted sum of the gaps between costs of neighbouring ranks. Gaps between the lowest of many costs are nearly
    independent and exponential (Renyi), so half the sum of their squared contributions estimates the variance of the loss.
    """
    ordered = _sorted_costs(costs)
    n, gaps = len(ordered), np.diff(ordered)
    largest = gaps.max(initial=0.0)
    if not largest > 0:
        return HalvingLoss(0.0, 1.0)
    gaps = gaps / largest  # huge costs would overflow otherwise
    terms = _chances_below_rank(n, n / 2) * gaps
    loss, variance = float(terms.sum()), float((terms**2).sum()) / 2
    shape = loss**2 / variance if variance > 0 else 1.0
    return HalvingLoss(loss * float(largest), shape)


def _sorted_costs(costs: FloatArray) -> FloatArray:
    return np.sort(np.where(np.isnan(costs), np.nanmax(costs), costs))


def _chances_below_rank(total: int, number_drawn: float) -> FloatArray:
    """Return the probability that the best of `number_drawn` trials out of `total` has a rank worse than 1, 2, ..., total - 1."""
    left = total - np.arange(1, total, dtype=np.float64)
    possible = left >= number_drawn - 1e-9
    left = np.where(possible, left, total)
    chance = np.exp(
        gammaln(left + 1) - gammaln(left - number_drawn + 1) - gammaln(total + 1) + gammaln(total - number_drawn + 1)
    )
    return np.asarray(np.where(possible, chance, 0.0), dtype=np.float64)
