"""Computes functions of the ranks of costs: normal scores, and a selection of trials that is evenly spaced in rank."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray, IntArray

MAX_FITTED_TRIALS = 128
"""Maximum number of trials to which a response is fitted, evenly spaced in rank."""


def normal_scores(costs: FloatArray) -> FloatArray:
    """Return the ranks of the costs as quantiles of the standard normal distribution; NaN costs share the worst rank."""
    cost_ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    quantiles = stats.norm.ppf((cost_ranks - 0.5) / len(cost_ranks))
    quantile_sd = quantiles.std()
    return np.asarray((quantiles - quantiles.mean()) / (quantile_sd or 1.0), dtype=np.float64)


def choose_evenly_by_rank(costs: FloatArray, max_number: int = MAX_FITTED_TRIALS) -> IntArray:
    """Return the indices of at most `max_number` costs that are evenly spaced in rank, lowest cost first."""
    lowest_first = np.argsort(costs, kind="stable")
    n = len(lowest_first)
    return lowest_first if n <= max_number else lowest_first[np.linspace(0, n - 1, max_number).round().astype(np.int64)]


def log_rank_scores(costs: FloatArray) -> FloatArray:
    """Return the centred logarithms of the relative ranks of costs, shape (n,), in which good trials differ most. NaN costs
    share the worst rank."""
    cost_ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    log_ranks = np.log((cost_ranks - 0.5) / len(cost_ranks))
    return np.asarray(log_ranks - log_ranks.mean(), dtype=np.float64)


def log_p_values_of_axes(numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> FloatArray:
    """Return the log p-value of each axis, numeric axes first, of an F-test that the ranks of the costs do not depend on the axis.

    numeric, choices: positions on each axis, shape (n,), NaN if missing. costs: shape (n,), NaN for failed trials. The model is
    quadratic in the ranks of a numeric hyperparameter, with one term per value of a choice; a missing position counts as a value.
    """
    scores = normal_scores(costs)
    log_p_values = []
    for positions in numeric:
        is_known = np.isfinite(positions)
        ranks = stats.rankdata(np.where(is_known, positions, np.nan), nan_policy="omit") / max(is_known.sum(), 1)
        ranks = np.nan_to_num(ranks - 0.5)
        features = np.stack([ranks, ranks**2, ~is_known], axis=1)
        centred = features - features.mean(0)
        centred = centred[:, np.abs(centred).max(axis=0) > 1e-9]  # without constant columns
        fitted = centred @ np.linalg.lstsq(centred, scores, rcond=None)[0]
        rank = int(np.linalg.matrix_rank(centred))
        log_p_values.append(_log_p_value_of_fit(float(fitted @ fitted), rank, scores))
    for positions in choices:
        index = np.unique(positions, return_inverse=True)[1]
        counts = np.bincount(index)
        means = np.bincount(index, scores) / counts
        log_p_values.append(_log_p_value_of_fit(float(counts @ means**2), len(counts) - 1, scores))
    return np.array(log_p_values, dtype=np.float64)


def p_value_of_fall(x: FloatArray, y: FloatArray) -> float:
    """Return the one-sided p-value of a fall of y with growing x (Spearman); 1 for n < 3. x, y: (n,), finite."""
    if len(x) < 3 or not np.ptp(x) > 0 or not np.ptp(y) > 0:
        return 1.0
    return float(stats.spearmanr(x, y, alternative="less").pvalue)


def _log_p_value_of_fit(explained_share: float, terms: int, values: FloatArray) -> float:
    """Return the log p-value of the F-test of a fit with `terms` terms that explains the sum of squares `explained_share`; 0
    without terms or degrees of freedom."""
    total, freedom = float(values @ values), len(values) - terms - 1
    if terms < 1 or freedom < 1 or total <= 0:
        return 0.0
    f_ratio = (explained_share / terms) / (max(total - explained_share, 1e-12 * total) / freedom)
    return float(stats.f.logsf(f_ratio, terms, freedom))
