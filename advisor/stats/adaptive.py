"""Tests whether a sampler was adaptive: whether it placed later points near good earlier points."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray
from advisor.stats.ranks import log_rank_scores

SEED = 0
NUMBER_OF_PERMUTATIONS = 199
MIN_POINTS = 10
MAX_TESTED_POINTS = 128
"""Maximum number of points to test; later ones are ignored."""
_MIN_P_OF_UNIFORM_AXIS = 0.1
"""An axis counts as evenly covered if a test of uniform positions has at least this p-value. The limit on this p-value is high,
because an adaptive sampler soon clusters positions on some axis."""


def p_value_of_adaptivity(positions: FloatArray, costs: FloatArray) -> float:
    """Return the p-value of the hypothesis that earlier costs did not influence the choice of later points; 1 for fewer than 10
    points.

    positions: (n, d) in the order of the trials, in 0..1, NaN if a point lacks the axis; costs: (n,), NaN for failed trials. A
    permutation test uses two statistics (Bonferroni): nearness to the best earlier point, and nearness to good rather than bad
    earlier points. Evenly covered axes are ignored, because a grid that is traversed in order would look adaptive.
    """
    u = positions[:MAX_TESTED_POINTS]
    u = u[:, [_is_unevenly_covered(column) for column in positions.T]] if len(u) >= MIN_POINTS else u[:, :0]
    if not u.shape[1]:
        return 1.0
    cost_scores = log_rank_scores(costs[:MAX_TESTED_POINTS])
    distance = _mean_distances(u)
    contrast = distance * (cost_scores[None, :] - cost_scores[:, None])
    rng, n = np.random.default_rng(SEED), len(u)
    orders = [np.arange(n), *(rng.permutation(n) for _ in range(NUMBER_OF_PERMUTATIONS))]
    statistics = np.array([_nearness_to_best_points(order, cost_scores, distance, contrast) for order in orders])
    return float(min(1.0, 2 * np.mean(statistics >= statistics[0] - 1e-12, axis=0).min()))


def _nearness_to_best_points(
    order: np.ndarray, values: FloatArray, distance: FloatArray, contrast: FloatArray
) -> tuple[float, float]:
    """Return the points' nearness to the best earlier point, and to better rather than worse earlier points."""
    costs_in_order = values[order]
    best = np.minimum.accumulate(costs_in_order)
    leader = np.maximum.accumulate(np.where(costs_in_order <= best, np.arange(len(order)), 0))
    half = MIN_POINTS // 2
    mean_distance = distance[order[half:], order[leader[half - 1 : -1]]].mean()
    return -float(mean_distance), float(np.tril(contrast[np.ix_(order, order)], -1).sum())


def _mean_distances(positions: FloatArray) -> FloatArray:
    """Return the mean distance between each two points, shape (n, n), over the axes on which both points have a position."""
    total, shared = np.zeros((2, len(positions), len(positions)))
    for column in positions.T:
        gaps = np.abs(column[:, None] - column[None, :])
        is_known = np.isfinite(gaps)
        total += np.where(is_known, gaps, 0.0)
        shared += is_known
    return np.asarray(total / np.maximum(shared, 1), dtype=np.float64)


def _is_unevenly_covered(positions: FloatArray) -> bool:
    present = positions[np.isfinite(positions)]
    counts = np.unique(present, return_counts=True)[1]
    if len(counts) < 2:
        return False
    test = stats.chisquare(counts) if len(counts) <= MIN_POINTS else stats.kstest(present, "uniform")
    return bool(test.pvalue <= _MIN_P_OF_UNIFORM_AXIS)
