"""Statistics of repeats for the rule `adopt`: gaps between the results of repeats, and the chance of replication."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from advisor.model.space import FloatArray
from advisor.stats.difference import SEED, Difference

_MIN_REPEATS = 4
_NUMBER_OF_SIMULATIONS = 9_999


def chance_of_replication(result: Difference, level: float) -> float:
    """Return the probability that the same comparison, repeated, is significant in the same direction (two-sided at `level`) if
    the observed difference is the true one."""
    if not result.error > 0:
        return float(result.gain != 0)
    limit = float(special.stdtrit(result.freedom, 1 - level / 2))
    return float(special.stdtr(result.freedom, abs(result.gain) / result.error - limit))


@dataclass(frozen=True, slots=True)
class CostGap:
    """A gap in the costs of the repeats of one setting, which splits the repeats into two groups."""

    smaller_group: tuple[int, ...]
    """Indices of the repeats in the smaller group."""
    is_smaller_group_worse: bool
    p_value: float
    """p-value: probability of a gap at least this wide if the repeats are normally distributed."""


def widest_cost_gap(costs: FloatArray) -> CostGap | None:
    """Return the widest gap between the costs of repeats, relative to the range of the larger group; None for fewer than 4
    repeats. The p-value is simulated, to account for choosing the widest of several gaps."""
    n = len(costs)
    if n < _MIN_REPEATS or not np.ptp(costs) > 0:
        return None
    order = np.argsort(costs, kind="stable")
    ratios = _gap_ratios(costs[order][None, :])[0]
    cut = int(np.argmax(ratios))
    p = float((1 + np.sum(_simulated_ratios(n) >= ratios[cut])) / (_NUMBER_OF_SIMULATIONS + 1))
    is_worse = cut + 1 >= n - cut - 1
    smaller_group = order[cut + 1 :] if is_worse else order[: cut + 1]
    return CostGap(tuple(sorted(smaller_group.tolist())), is_worse, p)


def _gap_ratios(ordered: FloatArray) -> FloatArray:
    """Return each gap between neighbouring ordered values, divided by the range of the larger group, shape (k, n - 1). The
    smallest gap is added to the range: equal values may differ by the resolution of the metric."""
    n = ordered.shape[1]
    gaps = np.diff(ordered, axis=1)
    below, above = ordered[:, :-1] - ordered[:, :1], ordered[:, -1:] - ordered[:, 1:]
    larger_range = np.where(np.arange(1, n) >= n - np.arange(1, n), below, above)
    resolution = np.min(np.where(gaps > 0, gaps, np.inf), axis=1, keepdims=True)
    return np.asarray(gaps / (larger_range + resolution), dtype=np.float64)


@lru_cache(maxsize=64)
def _simulated_ratios(n: int) -> FloatArray:
    samples = np.random.default_rng(SEED).standard_normal((_NUMBER_OF_SIMULATIONS, n))
    return np.asarray(_gap_ratios(np.sort(samples, axis=1)).max(axis=1), dtype=np.float64)
