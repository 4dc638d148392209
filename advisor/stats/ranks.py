"""Computes functions of the ranks of costs: normal scores, and a selection of trials that is evenly spaced in rank."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray, IntArray

MAX_FITTED_TRIALS = 128
"""Maximum number of trials to which a response is fitted; more trials are thinned out evenly by rank."""


def normal_scores(costs: FloatArray) -> FloatArray:
    """Return the costs' ranks, converted to quantiles of the standard normal distribution; NaN costs tie as the worst."""
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    scores = stats.norm.ppf((ranks - 0.5) / len(ranks))
    spread = scores.std()
    return np.asarray((scores - scores.mean()) / (spread or 1.0), dtype=np.float64)


def choose_evenly_by_rank(costs: FloatArray, max_number: int = MAX_FITTED_TRIALS) -> IntArray:
    """Return the indices of at most `max_number` of the costs, evenly spaced in rank."""
    order = np.argsort(costs, kind="stable")
    return order if len(order) <= max_number else order[np.linspace(0, len(order) - 1, max_number).round().astype(np.int64)]


def log_rank_scores(costs: FloatArray) -> FloatArray:
    """Return the logarithms of the costs' relative ranks, centred, shape (n,); NaN costs tie as the worst.

    The logarithm spreads good trials and compresses bad trials.
    """
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    logs = np.log((ranks - 0.5) / len(ranks))
    return np.asarray(logs - logs.mean(), dtype=np.float64)


def log_p_values_of_axes(numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> FloatArray:
    """Return the log p-value of each axis, numeric axes first. The hypothesis of each F-test is that costs do not depend on the
    axis.

    numeric, choices: positions (n,), NaN if missing; costs: (n,), NaN for failed trials, which count as the worst. Only the
    ranks of the costs matter. The model is quadratic in the ranks of a numeric hyperparameter, and has one term per value of a
    choice; a missing position counts as a value.
    """
    values = normal_scores(costs)
    logs = [_log_p_value(_quadratic_features(u), values) for u in numeric] + [
        _log_p_value_of_choice(u, values) for u in choices
    ]
    return np.array(logs, dtype=np.float64)


def p_value_of_fall(x: FloatArray, y: FloatArray) -> float:
    """Return the one-sided p-value of a fall of y with rising x (Spearman's rank correlation); 1 for fewer than 3 points.

    x, y: (n,), finite.
    """
    if len(x) < 3 or not np.ptp(x) > 0 or not np.ptp(y) > 0:
        return 1.0
    return float(stats.spearmanr(x, y, alternative="less").pvalue)


def _quadratic_features(positions: FloatArray) -> FloatArray:
    is_known = np.isfinite(positions)
    ranks = np.zeros(len(positions))
    if is_known.any():
        ranks[is_known] = stats.rankdata(positions[is_known]) / is_known.sum() - 0.5
    return np.stack([ranks, np.where(is_known, ranks**2, 0.0), (~is_known).astype(np.float64)], axis=1)


def _log_p_value(design: FloatArray, values: FloatArray) -> float:
    centred = design - design.mean(0)
    centred = centred[:, np.abs(centred).max(axis=0) > 1e-9]  # without constant columns
    fitted_values = centred @ np.linalg.lstsq(centred, values, rcond=None)[0]
    return _log_p_value_of_fit(float(fitted_values @ fitted_values), int(np.linalg.matrix_rank(centred)), values)


def _log_p_value_of_choice(positions: FloatArray, values: FloatArray) -> float:
    _, level = np.unique(positions, return_inverse=True)
    sizes = np.bincount(level)
    means = np.bincount(level, values) / sizes
    return _log_p_value_of_fit(float(sizes @ means**2), len(sizes) - 1, values)


def _log_p_value_of_fit(explained_share: float, terms: int, values: FloatArray) -> float:
    """Return the log p-value of the F-test of a fit that explains the given sum of squares; 0 if it has no terms or no degrees
    of freedom."""
    total, freedom = float(values @ values), len(values) - terms - 1
    if terms < 1 or freedom < 1 or total <= 0:
        return 0.0
    ratio = (explained_share / terms) / (max(total - explained_share, 1e-12 * total) / freedom)
    return float(stats.f.logsf(ratio, terms, freedom))
