"""Tests whether a sampler was adaptive, which means that it placed later points near good earlier points."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray
from advisor.stats.ranks import log_rank_scores

SEED = 0
NUMBER_OF_PERMUTATIONS = 199
MIN_POINTS = 10
MAX_TESTED_POINTS = 128
"""Maximum number of points to test; later points are ignored."""
_MIN_P_OF_UNIFORM_AXIS = 0.1
"""Minimum p-value of a test of uniform positions for an axis to count as evenly covered. The limit is high, because an adaptive
sampler soon clusters positions on some axis."""


def p_value_of_adaptivity(positions: FloatArray, costs: FloatArray) -> float:
    """Return the p-value of the hypothesis that earlier costs did not influence the choice of later points; 1 for fewer than 10
    points.

    positions: shape (n, d), from 0 to 1, in the order of the trials; NaN if a point has no value on an axis. costs: shape (n,), NaN
    for failed trials. The permutation test uses two statistics (Bonferroni): nearness to the best earlier point, and nearness to
    good rather than bad earlier points. Evenly covered axes are ignored, because a grid that is traversed in order looks adaptive.
    """
    u = positions[:MAX_TESTED_POINTS]
    u = u[:, [_is_unevenly_covered(column) for column in positions.T]] if len(u) >= MIN_POINTS else u[:, :0]
    if not u.shape[1]:
        return 1.0
    scores = log_rank_scores(costs[:MAX_TESTED_POINTS])
    distances = _mean_distances(u)
    contrasts = distances * (scores[None, :] - scores[:, None])
    rng, n = np.random.default_rng(SEED), len(u)
    orders = [np.arange(n), *(rng.permutation(n) for _ in range(NUMBER_OF_PERMUTATIONS))]
    nearness = np.array([_nearness_to_best(order, scores, distances, contrasts) for order in orders])
    return float(min(1.0, 2 * np.mean(nearness >= nearness[0] - 1e-12, axis=0).min()))


def _nearness_to_best(order: np.ndarray, values: FloatArray, distance: FloatArray, contrast: FloatArray) -> tuple[float, float]:
    """Return (mean nearness of each point to the best earlier point, nearness to better rather than worse earlier points)."""
    costs_in_order = values[order]
    lowest_costs = np.minimum.accumulate(costs_in_order)
    index_of_lowest = np.maximum.accumulate(np.where(costs_in_order <= lowest_costs, np.arange(len(order)), 0))
    first_tested = MIN_POINTS // 2
    mean_distance = distance[order[first_tested:], order[index_of_lowest[first_tested - 1 : -1]]].mean()
    return -float(mean_distance), float(np.tril(contrast[np.ix_(order, order)], -1).sum())


def _mean_distances(positions: FloatArray) -> FloatArray:
    total, shared = np.zeros((2, len(positions), len(positions)))
    for column in positions.T:
        axis_distances = np.abs(column[:, None] - column[None, :])
        is_known = np.isfinite(axis_distances)
        total += np.where(is_known, axis_distances, 0.0)
        shared += is_known
    return np.asarray(total / np.maximum(shared, 1), dtype=np.float64)


def _is_unevenly_covered(positions: FloatArray) -> bool:
    known = positions[np.isfinite(positions)]
    counts = np.unique(known, return_counts=True)[1]
    if len(counts) < 2:
        return False
    test = stats.chisquare(counts) if len(counts) <= MIN_POINTS else stats.kstest(known, "uniform")
    return bool(test.pvalue <= _MIN_P_OF_UNIFORM_AXIS)
