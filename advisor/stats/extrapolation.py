"""Extrapolates a quantity, such as a learning rate, to a larger model or data set.

The slope over log size may drift, so intervals widen with the distance of extrapolation. Two to five sizes do not show how
straight a trend is, so we average over several assumed drifts of the slope and deviations of single sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from advisor.model.space import FloatArray

SEED = 0
NUMBER_OF_DRAWS = 4000
_RATE_DRIFTS, _RATE_DEVIATIONS = (0.03, 0.1, 0.3), (0.05, 0.1, 0.2)
"""Standard deviations for the log learning rate: of the change of the slope when the size grows by the factor e, and of the
distance of single sizes from the trend. We chose these values on the development seeds of `benchmarks/quality/ladder.py`."""
_LEARNING_RATE_SLOPE_SD = 0.5
"""Prior standard deviation of the slope of the log learning rate over the log model size. The slope is -0.5 if the learning
rate falls as 1 / width, -0.71 according to Step Law, and 0 with mup."""
_COST_DRIFTS, _COST_DEVIATIONS = (0.03, 0.1, 0.3), (0.03, 0.1, 0.3)
"""Standard deviations for costs, in units of the range of known costs: of the change of the slope when the size grows by the factor
e, and of the distance of single sizes from the trend."""
_COST_SLOPE_SD = 2.0
_POWER_LAW_EXPONENTS = np.geomspace(0.02, 1.0, 6)
"""Candidate exponents of a power law for the cost: cost = floor + factor * size ** -exponent."""

SlopeFeature = Callable[[FloatArray], FloatArray]


class Trend(NamedTuple):
    """Posterior draws of a trend over model or data sizes."""

    values_at_known_sizes: FloatArray
    """Values of the trend at the known sizes, shape (draws, K)."""
    values_at_new_size: FloatArray
    """Value at the new size, shape (draws,), including the random deviation of one size from the trend."""


def learning_rate_trend(log_sizes: FloatArray, means: FloatArray, variances: FloatArray, new_log_size: float) -> Trend:
    """Return the trend of the log of the best learning rate over log size. Arrays have shape (K,), K >= 2, sizes ascending."""
    models = list(itertools.product((lambda distance: distance,), _RATE_DRIFTS, _RATE_DEVIATIONS))
    return _draw_from_mixture(log_sizes, means, variances, new_log_size, 1.0, _LEARNING_RATE_SLOPE_SD, models)


def cost_trend(log_sizes: FloatArray, means: FloatArray, variances: FloatArray, new_log_size: float) -> Trend:
    """Return the trend of the best cost over log size: power laws with a floor. All arrays have shape (K,), K >= 3."""
    cost_scale = max(float(np.ptp(means)), math.sqrt(float(variances.max())), 1e-12)
    # Power laws are scaled to a slope of 1 at the smallest size.
    power_laws = [lambda distance, e=exponent: -np.expm1(-e * distance) / e for exponent in _POWER_LAW_EXPONENTS]
    models = list(itertools.product(power_laws, _COST_DRIFTS, _COST_DEVIATIONS))
    return _draw_from_mixture(log_sizes, means, variances, new_log_size, cost_scale, _COST_SLOPE_SD * cost_scale, models)


def _draw_from_mixture(
    log_sizes: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    new_log_size: float,
    scale: float,
    slope: float,
    models: Sequence[tuple[SlopeFeature, float, float]],
) -> Trend:
    """Return posterior draws of the trend from several models (feature, drift, deviation), weighted by their likelihoods. A trend
    is a multiple of `feature`, a function of the distance from the smallest size."""
    at, count = np.append(log_sizes, new_log_size) - log_sizes[0], len(log_sizes)
    centred = means - means.mean()
    smaller = np.minimum(at[:, None], at[None, :])
    # Covariance of a slope that is a random walk from 0 at the first size (integrated Wiener process).
    drift_covariance = smaller**3 / 3 + np.abs(at[:, None] - at[None, :]) * smaller**2 / 2
    posteriors, likelihoods = [], []
    for feature, drift, deviation in models:
        feature_covariance = slope**2 * np.outer(feature(at), feature(at))
        prior = (10 * scale) ** 2 + feature_covariance + (drift * scale) ** 2 * drift_covariance
        own = (deviation * scale) ** 2
        noisy_covariance = prior[:count, :count] + np.diag(variances + own)
        gain_matrix = prior[:, :count] @ np.linalg.inv(noisy_covariance)
        covariance = prior - gain_matrix @ prior[:count]
        covariance[count, count] += own
        posteriors.append((means.mean() + gain_matrix @ centred, covariance))
        root = np.linalg.cholesky(noisy_covariance)
        likelihoods.append(-0.5 * np.sum(np.linalg.solve(root, centred) ** 2) - np.log(np.diag(root)).sum())
    model_weights = np.exp(np.array(likelihoods) - max(likelihoods))
    rng = np.random.default_rng(SEED)
    counts = rng.multinomial(NUMBER_OF_DRAWS, model_weights / model_weights.sum())
    models_and_counts = zip(posteriors, counts, strict=True)
    draws = np.concatenate([rng.multivariate_normal(*model, size=n, method="eigh") for model, n in models_and_counts])
    return Trend(draws[:, :count], draws[:, count])
