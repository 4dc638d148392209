"""Computes functions of the ranks of costs: normal scores, and a selection of trials that is evenly spaced in rank."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray, IntArray

MAX_FITTED_TRIALS = 128
"""Maximum number of trials to which a response is fitted, evenly spaced in rank."""


def normal_scores(costs: FloatArray) -> FloatArray:
    """Return the costs' ranks as quantiles of the standard normal distribution; NaN costs tie as the worst."""
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    scores = stats.norm.ppf((ranks - 0.5) / len(ranks))
    spread = scores.std()
    return np.asarray((scores - scores.mean()) / (spread or 1.0), dtype=np.float64)


def choose_evenly_by_rank(costs: FloatArray, max_number: int = MAX_FITTED_TRIALS) -> IntArray:
    """Return the indices of at most `max_number` of the costs, evenly spaced in rank."""
    order = np.argsort(costs, kind="stable")
    return order if len(order) <= max_number else order[np.linspace(0, len(order) - 1, max_number).round().astype(np.int64)]


def log_rank_scores(costs: FloatArray) -> FloatArray:
    """Return the logarithms of relative ranks, centred, (n,), which spread good trials; NaN costs tie as the worst."""
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    logs = np.log((ranks - 0.5) / len(ranks))
    return np.asarray(logs - logs.mean(), dtype=np.float64)


def log_p_values_of_axes(numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> FloatArray:
    """Return the log p-value of each axis, numeric ones first, of F-tests that the ranks of the costs do not depend on it.

    numeric, choices: positions (n,), NaN if missing; costs: (n,), NaN for failed trials. The model is quadratic in the ranks of
    a numeric hyperparameter, with one term per value of a choice; a missing position counts as a value.
    """
    values = normal_scores(costs)
    logs = []
    for positions in numeric:
        is_known = np.isfinite(positions)
        ranks = np.nan_to_num(
            stats.rankdata(np.where(is_known, positions, np.nan), nan_policy="omit") / max(is_known.sum(), 1) - 0.5
        )
        design = np.stack([ranks, ranks**2, ~is_known], axis=1)
        centred = design - design.mean(0)
        centred = centred[:, np.abs(centred).max(axis=0) > 1e-9]  # without constant columns
        fitted = centred @ np.linalg.lstsq(centred, values, rcond=None)[0]
        logs.append(_log_p_value_of_fit(float(fitted @ fitted), int(np.linalg.matrix_rank(centred)), values))
    for positions in choices:
        level = np.unique(positions, return_inverse=True)[1]
        sizes = np.bincount(level)
        means = np.bincount(level, values) / sizes
        logs.append(_log_p_value_of_fit(float(sizes @ means**2), len(sizes) - 1, values))
    return np.array(logs, dtype=np.float64)


def p_value_of_fall(x: FloatArray, y: FloatArray) -> float:
    """Return the one-sided p-value of a fall of y with x, both (n,), finite (Spearman); 1 for fewer than 3 points."""
    if len(x) < 3 or not np.ptp(x) > 0 or not np.ptp(y) > 0:
        return 1.0
    return float(stats.spearmanr(x, y, alternative="less").pvalue)


def _log_p_value_of_fit(explained_share: float, terms: int, values: FloatArray) -> float:
    """Return the log p-value of the F-test of a fit that explains this sum of squares; 0 without terms or freedom."""
    total, freedom = float(values @ values), len(values) - terms - 1
    if terms < 1 or freedom < 1 or total <= 0:
        return 0.0
    ratio = (explained_share / terms) / (max(total - explained_share, 1e-12 * total) / freedom)
    return float(stats.f.logsf(ratio, terms, freedom))
