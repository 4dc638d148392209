"""Whether a sampler learned: later points lie where earlier ones were good."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray
from advisor.stats.boundaries import scores

SEED = 0
PERMUTATIONS = 199
FEWEST = 10
"""Points below which no sampler shows what it learned."""
MOST = 128
"""Points looked at, from the first on: a sampler that learns shows it by then."""
_EVEN = 0.1
"""P-value above which an axis is covered evenly; generous, as what learns crowds somewhere by and by."""


def learned(positions: FloatArray, costs: FloatArray) -> float:
    """P-value that points were placed without regard to the costs of those before them; 1 for fewer than 10 points.

    positions: (n, d) in the order in which they were tried, in 0..1, NaN where a point has no such axis; costs: (n,), NaN where a
    trial failed. Two statistics, each compared with points in other orders and corrected for both: how near points lie to the best
    one before them, and how much nearer to good than to bad ones. A sweep through a grid has an order too, but covers its axes
    evenly: an axis that is covered evenly counts as not learned.
    """
    u = positions[:MOST]
    u = u[:, [_uneven(column) for column in positions.T]] if len(u) >= FEWEST else u[:, :0]
    if not u.shape[1]:
        return 1.0
    values = scores(costs[:MOST])
    distance = _distances(u)
    contrast = distance * (values[None, :] - values[:, None])
    rng, n = np.random.default_rng(SEED), len(u)
    orders = [np.arange(n), *(rng.permutation(n) for _ in range(PERMUTATIONS))]
    seen = np.array([_statistics(order, values, distance, contrast) for order in orders])
    return float(min(1.0, 2 * np.mean(seen >= seen[0] - 1e-12, axis=0).min()))


def _statistics(
    order: np.ndarray, values: FloatArray, distance: FloatArray, contrast: FloatArray
) -> tuple[float, float]:
    """(nearness to the best before, how much nearer to better ones before) for points tried in this order."""
    ordered = values[order]
    best = np.minimum.accumulate(ordered)
    leader = np.maximum.accumulate(np.where(ordered <= best, np.arange(len(order)), 0))
    half = FEWEST // 2
    near = distance[order[half:], order[leader[half - 1 : -1]]].mean()
    return -float(near), float(np.tril(contrast[np.ix_(order, order)], -1).sum())


def _distances(positions: FloatArray) -> FloatArray:
    """Mean distance along the axes that both points have, shape (n, n)."""
    apart = np.abs(positions[:, None, :] - positions[None, :, :])
    known = np.isfinite(apart)
    return np.asarray(np.where(known, apart, 0.0).sum(2) / np.maximum(known.sum(2), 1), dtype=np.float64)


def _uneven(positions: FloatArray) -> bool:
    """Whether positions crowd somewhere, beyond what evenly drawn ones do."""
    known = positions[np.isfinite(positions)]
    levels, counts = np.unique(known, return_counts=True)
    if len(levels) < 2:
        return False
    if len(levels) <= FEWEST:
        return bool(stats.chisquare(counts).pvalue <= _EVEN)
    return bool(stats.kstest(known, "uniform").pvalue <= _EVEN)
