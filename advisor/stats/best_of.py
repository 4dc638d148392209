"""Computes the expected cost of the best of n trials, exactly. Lower costs are better; a cost of NaN marks a failed trial."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray


def chance_of_better_trial(costs: FloatArray, n: int, level: float) -> float:
    """Return the probability that the lowest of `n` of the costs, shape (N,), is below `level`."""
    return 1 - chance_of_drawing_no_target(len(costs), min(n, len(costs)), int(np.sum(costs < level)))


def expected_gain(costs: FloatArray, further_trials: int, margin: float = 0.0) -> tuple[float, float]:
    """Return (probability, expected size) of an improvement by `further_trials` more trials of the same search.

    An improvement is a cost more than `margin` below the lowest earlier cost. We compute it from a random subset of the trials to
    all trials; the subset grows by the same factor as all trials do with the further ones. Improvements become smaller with more
    trials, so the size tends to be too high.
    """
    lowest_first = sorted_costs(costs)
    total, gains_over_lowest = len(lowest_first), lowest_first - lowest_first[0]
    subset_size = max(round(total * total / (total + further_trials)), 1)
    equal_cost_count = int(np.sum(gains_over_lowest <= margin))
    chances_of_no_hit = stats.hypergeom.pmf(0, total, np.arange(total + 1), subset_size)
    chance, best = float(chances_of_no_hit[equal_cost_count]), -np.diff(chances_of_no_hit)
    return chance, float(best[equal_cost_count:] @ gains_over_lowest[equal_cost_count:]) / chance if chance > 0 else 0.0


def chance_of_drawing_no_target(total: int, number_drawn: int, targets: int) -> float:
    """Return the probability that none of `targets` items is among `number_drawn` of `total` items (hypergeometric)."""
    return float(stats.hypergeom.pmf(0, total, targets, number_drawn))


def p_value_of_late_group(sizes: Sequence[int], ranks: Sequence[int], items_ahead: int) -> float:
    """Return the p-value of a group that comes late in an order of items from several groups: an upper bound of the probability
    that, in a random order, any group has fewer than its rank of items among the first `items_ahead` items.

    sizes, ranks: for each group, the number of items, and the rank within the group (1 is the best) of the item that came late.
    """
    chance_per_group = stats.hypergeom.cdf(np.array(ranks) - 1, sum(sizes), np.array(sizes), items_ahead)
    return min(float(chance_per_group.sum()), 1.0)


def quantiles_of_best(costs: FloatArray, n: int, levels: FloatArray) -> FloatArray:
    """Return the quantiles at `levels` from 0 to 1, shape (k,), of the lowest of n costs drawn with replacement from `costs`,
    shape (N,), N >= 1; inf if the quantile is a failed trial.

    The quantiles are the limit of a bootstrap: the n draws include one of the k best trials with probability 1 - (1 - k/N)^n.
    """
    lowest_first = np.sort(np.where(np.isnan(costs), np.inf, costs))
    return lowest_first[[rank_of_best(len(lowest_first), n, level) - 1 for level in levels.tolist()]]


def rank_of_best(total: int, n: int, level: float) -> int:
    """Return the `level` quantile of the rank (1 is the best) of the best of n of `total` trials, drawn with replacement."""
    rank = math.ceil(-total * math.expm1(math.log1p(-level) / n) - 1e-9) if level < 1 else total
    return min(max(rank, 1), total)


def sorted_costs(costs: FloatArray) -> FloatArray:
    return np.sort(np.where(np.isnan(costs), np.nanmax(costs), costs))
