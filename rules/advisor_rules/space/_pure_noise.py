"""Tests whether noise explains all differences between results."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.computed.space.settings import Settings
from advisor.model.space import FloatArray
from advisor.stats import boundaries, ranks

_MAX_NORMALITY_TEST_RESULTS = 1000
_CONCLUSIVE_P_VALUE = 0.01
"""Maximum p-value of the other tests at which dependence on the hyperparameters need not be tested."""


def p_of_pure_noise(tried: Settings, max_sd: float) -> float:
    """Return the p-value of the hypothesis that 3 or more results differ only by normal noise, whatever the hyperparameters.

    The p-value is twice the smaller p-value of two tests: - Dependence on a hyperparameter (`boundaries.p_values_of_clusters`),
    combined by Fisher's method with departure from normality (Shapiro-Wilk test, after rounding is undone). - Scatter above the
    standard deviation between seeds, at most `max_sd` as a share of the result; results need the same sign.
    """
    costs = tried.costs[~tried.failed]
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.ptp(costs)) or not np.ptp(costs) > 0:
            return float(not np.ptp(costs) > 0)
    sample = costs
    if len(costs) > _MAX_NORMALITY_TEST_RESULTS:
        sample = costs[np.linspace(0, len(costs) - 1, _MAX_NORMALITY_TEST_RESULTS).astype(np.int64)]
    p_normal = float(stats.shapiro(_undo_rounding((sample - sample.mean()) / np.ptp(sample))).pvalue)
    p_scatter, median_cost = 1.0, abs(float(np.median(costs)))
    if median_cost > 0 and (costs.min() > 0 or costs.max() < 0):
        squares = float(np.sum(((costs - costs.mean()) / median_cost) ** 2)) / max_sd**2
        p_scatter = float(stats.chi2.sf(squares, len(costs) - 1))
    max_p = 2 * min(_combine_p_values(p_normal, 1.0), p_scatter)
    axes = [*tried.numeric.values(), *tried.choices.values()]
    if max_p <= _CONCLUSIVE_P_VALUE or not axes:
        return min(1.0, max_p)
    p_axes = float(boundaries.p_values_of_clusters(np.stack(axes, axis=1), ranks.log_rank_scores(tried.costs)).min())
    return min(1.0, 2 * min(_combine_p_values(p_normal, p_axes), p_scatter))


def _combine_p_values(one: float, other: float) -> float:
    """Combine two independent positive p-values by Fisher's method."""
    return float(stats.chi2.sf(-2 * (np.log(max(one, 1e-12)) + np.log(min(other, 1.0))), 4))


def _undo_rounding(values: FloatArray) -> FloatArray:
    """Return the values (n,) with equal ones spread evenly over the smallest difference between distinct values."""
    levels, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(levels) < 2 or counts.max() < 2:
        return values
    order = np.argsort(indices, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.empty(len(values))
    rank[order] = np.arange(len(values)) - np.repeat(starts, counts)
    offsets = (rank + 0.5) / counts[indices] - 0.5
    return np.asarray(values + offsets * np.diff(levels).min(), dtype=np.float64)
