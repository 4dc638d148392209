"""Measures the effect of each hyperparameter alone, to choose those on which the slower joint tests run."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray
from advisor.stats.importance import normal_scores


def log_p_values(numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> FloatArray:
    """Return the logarithm of each axis's p-value, numeric axes first, of the hypothesis that costs are unrelated to it (F-test).

    numeric, choices: positions (n,), NaN if missing; costs: (n,), NaN for failed trials, which count as the worst. Only ranks of
    costs count. A number has a linear and a squared term in its ranks, a choice one term per level; a missing position is a
    separate level.
    """
    values = normal_scores(costs)
    logs = [_log_p(_quadratic(u), values) for u in numeric] + [_log_p_levels(u, values) for u in choices]
    return np.array(logs, dtype=np.float64)


def _quadratic(positions: FloatArray) -> FloatArray:
    known = np.isfinite(positions)
    ranks = np.zeros(len(positions))
    if known.any():
        ranks[known] = stats.rankdata(positions[known]) / known.sum() - 0.5
    return np.stack([ranks, np.where(known, ranks**2, 0.0), (~known).astype(np.float64)], axis=1)


def _log_p(design: FloatArray, values: FloatArray) -> float:
    centred = design - design.mean(0)
    centred = centred[:, np.abs(centred).max(axis=0) > 1e-9]  # without constant columns
    fitted = centred @ np.linalg.lstsq(centred, values, rcond=None)[0]
    return _of_fit(float(fitted @ fitted), int(np.linalg.matrix_rank(centred)), values)


def _log_p_levels(positions: FloatArray, values: FloatArray) -> float:
    _, level = np.unique(positions, return_inverse=True)
    sizes = np.bincount(level)
    means = np.bincount(level, values) / sizes
    return _of_fit(float(sizes @ means**2), len(sizes) - 1, values)


def _of_fit(explained: float, terms: int, values: FloatArray) -> float:
    """Return the logarithm of the p-value of a fit with this sum of squares; 0 if it has no terms or no degrees of freedom left."""
    total, left = float(values @ values), len(values) - terms - 1
    if terms < 1 or left < 1 or total <= 0:
        return 0.0
    ratio = (explained / terms) / (max(total - explained, 1e-12 * total) / left)
    return float(stats.f.logsf(ratio, terms, left))
