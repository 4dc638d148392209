"""Computes the expected best of n trials, and the loss if only half as many trials had run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import gammaln

from advisor.model.space import FloatArray
from advisor.stats.best_of import sorted_costs


@dataclass(frozen=True)
class HalvingLoss:
    """Expected difference between the best cost of a random half of the trials and the best cost of all trials."""

    expected_loss: float
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
    """Return the expected lowest cost of n of the trials, drawn without replacement; n, from 1 to their number, may be
    fractional. A failed trial counts as the worst result."""
    ordered = sorted_costs(costs)
    return float(ordered[0] + _chances_below_rank(len(ordered), n) @ np.diff(ordered))


def loss_of_halving(costs: FloatArray) -> HalvingLoss:
    """Return the expected loss if only half as many trials had run. costs: shape (n,), n >= 4, at least one cost not NaN.

    The loss is a weighted sum of the gaps between costs of neighbouring ranks. Gaps between the lowest of many costs are nearly
    independent and exponential (Renyi), so half the sum of their squared contributions estimates the variance of the loss.
    """
    ordered = sorted_costs(costs)
    n, gaps = len(ordered), np.diff(ordered)
    largest = gaps.max(initial=0.0)
    if not largest > 0:
        return HalvingLoss(0.0, 1.0)
    gaps = gaps / largest  # huge costs would overflow otherwise
    terms = _chances_below_rank(n, n / 2) * gaps
    loss, variance = float(terms.sum()), float((terms**2).sum()) / 2
    shape = loss**2 / variance if variance > 0 else 1.0
    return HalvingLoss(loss * float(largest), shape)


def _chances_below_rank(total: int, drawn: float) -> FloatArray:
    """Return the probability that the best of `drawn` of `total` trials has a rank worse than 1, 2, ..., total - 1."""
    n_worse = total - np.arange(1, total, dtype=np.float64)
    is_possible = n_worse >= drawn - 1e-9
    n_worse = np.where(is_possible, n_worse, total)
    chance = np.exp(gammaln(n_worse + 1) - gammaln(n_worse - drawn + 1) - gammaln(total + 1) + gammaln(total - drawn + 1))
    return np.asarray(np.where(is_possible, chance, 0.0), dtype=np.float64)
