"""Tests by simulation whether results are smoother if an axis has the other scale (log instead of linear, or linear instead of
log).

Two Gaussian process models of the response are compared. The first model is smooth along the axis on the scale that was used,
the second model on the other scale. The difference between the likelihoods of the two models is compared with the difference
for data simulated from the first model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from advisor.computed.space.settings import Settings
from advisor.model.space import Domain, FloatArray, as_number, is_training_length, natural_limits_of_name
from advisor.model.study import Study
from advisor.stats import surface
from advisor.stats.importance import axis_coordinates, squared_distances
from advisor.stats.ranks import choose_evenly_by_rank

SEED = 0
MIN_DISTINCT_VALUES = 5
"""Minimum number of distinct values of a hyperparameter to compare its scales."""
MAX_FITTED_POINTS = 80
"""Maximum number of points to which the models are fitted; the points are evenly spaced in rank."""
MIN_POINTS = 8
N_SIMULATIONS = 399
COMPARED_RESULTS_SHARE = 0.8
"""Share of the results whose values are compared, best first; all worse results count as equal, so that a few huge losses have
no effect.
"""
_INVERSE_LENGTH_SCALES = np.exp(np.linspace(-2.5, 8.5, 12))
"""Inverse squared length scales of an axis: from several range widths down to a hundredth of a range width."""
_NOISE_VARIANCES = (0.01, 0.05, 0.2, 1.0)
"""Noise variances, relative to the variance of the response."""


@dataclass(frozen=True)
class ParameterOnOtherScale:
    """A searched numeric hyperparameter and its range on the scale (log or linear) that was not used."""

    name: str
    domain: Domain
    positions: FloatArray
    """Positions of the settings in the range on the other scale, shape (settings,): NaN without a value, negative below the
    range."""


def find_other_scales(study: Study, tried: Settings, span: float) -> list[ParameterOnOtherScale]:
    """Return the searched numeric hyperparameters whose range ends have at least the ratio `span`, except the length of
    training.

    If the range of a positive hyperparameter starts at 0, its log range starts at the power of ten at or below the smallest
    tried value.
    """
    found = []
    for name, used in tried.numeric.items():
        if is_training_length(name) or len(np.unique(used[np.isfinite(used)])) < MIN_DISTINCT_VALUES:
            continue
        values = np.array([as_number(group[0].params.get(name)) for group in tried.trials])
        domain = study.spec.parameters[name]
        if domain.scale == "reverse-log":  # On a reverse-log scale, only the distance from 1 matters.
            continue
        low, high = domain.low or 0.0, domain.high or 0.0
        positive = values[values > 0]
        if low == 0 and natural_limits_of_name(name, domain.type)[0] == 0 and len(positive):
            low = 10.0 ** math.floor(math.log10(positive.min()))
        if low > 0 and high >= span * low:
            other = Domain(type=domain.type, low=low, high=high, scale="linear" if domain.scale == "log" else "log")
            found.append(ParameterOnOtherScale(name, other, other.to_positions(values)))
    return found


def spans_of_best_values(used: FloatArray, other: FloatArray, values: FloatArray) -> tuple[float, float]:
    """Return the shares of the range, on the scale used and on the other scale, that the best eighth (at least 4) of the values
    (n,) span."""
    known = np.flatnonzero(np.isfinite(used) & np.isfinite(other))
    best = known[np.argsort(values[known], kind="stable")[: max(4, len(values) // 8)]]
    return (float(np.ptp(used[best])), float(np.ptp(other[best]))) if len(best) else (1.0, 1.0)


def p_value(used: FloatArray, other: FloatArray, blocks: list[FloatArray], values: FloatArray) -> float:
    """Return the p-value of the hypothesis that the response is smooth on the scale used; 1 if the other scale fits no better.

    used, other: positions (n,) on both scales, NaN if missing; blocks: coordinates (n, c) of the other axes; values: (n,),
    finite, lower is better. For the other axes, both models use the length scales that were fitted on the scale used.
    """
    keep = choose_evenly_by_rank(values, MAX_FITTED_POINTS)
    n = len(keep)
    y = _standardise_columns(values[keep][:, None])
    if n < MIN_POINTS or not y.any():
        return 1.0
    rest = [squared_distances(b[keep], b[keep]) for b in blocks]
    axes = [squared_distances(c, c) for c in (axis_coordinates(u[keep], True) for u in (used, other))]
    at = surface.fit_parameters(y[:, 0], np.array([*rest, axes[0]]), np.array([*np.zeros(len(rest) + 1), 0.0, -2.0]))
    apart = sum((r * d for r, d in zip(np.exp(at[:-3]), rest, strict=True)), np.zeros((n, n)))
    models = [
        [_factor_correlation(apart + r * axis, noise) for r, noise in product(_INVERSE_LENGTH_SCALES, _NOISE_VARIANCES)]
        for axis in axes
    ]
    if max(_log_likelihoods(m, y)[0] for m in models[1]) <= max(_log_likelihoods(m, y)[0] for m in models[0]):
        return 1.0
    likeliest = max(models[0], key=lambda m: float(_log_likelihoods(m, y)[0]))
    drawn = likeliest[0] @ np.random.default_rng(SEED).standard_normal((n, N_SIMULATIONS))
    rows = np.hstack([y, _standardise_columns(drawn)])
    first, second = (np.max([_log_likelihoods(m, rows) for m in grid], axis=0) for grid in models)
    gain = second - first
    return float(np.mean(gain >= gain[0] - 1e-9))


def _standardise_columns(columns: FloatArray) -> FloatArray:
    """Return columns (n, m) with mean 0 and variance 1, after the worst values are set to one common value; zeros if all values
    are equal."""
    cut = np.minimum(columns, np.quantile(columns, COMPARED_RESULTS_SHARE, axis=0))
    cut = cut - cut.mean(0)
    spread = cut.std(0)
    return np.asarray(cut / np.where(spread > 0, spread, np.inf), dtype=np.float64)


_CorrelationFactors = tuple[FloatArray, FloatArray, float]
"""A correlation matrix, as (square root of the matrix, inverse of this root, log determinant of the matrix)."""


def _factor_correlation(apart: FloatArray, noise: float) -> _CorrelationFactors:
    root = np.asarray(np.linalg.cholesky(np.exp(-0.5 * apart) + (noise + 1e-6) * np.eye(len(apart))), dtype=np.float64)
    return root, np.asarray(np.linalg.inv(root), dtype=np.float64), 2 * float(np.log(np.diag(root)).sum())


def _log_likelihoods(model: _CorrelationFactors, rows: FloatArray) -> FloatArray:
    """Return the log-likelihood of each column of rows (n, m) at the most likely variance."""
    _, inverse, determinant = model
    size = ((inverse @ rows) ** 2).mean(0)
    return np.asarray(-0.5 * len(rows) * np.log(size) - 0.5 * determinant, dtype=np.float64)
