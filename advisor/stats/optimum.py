"""Estimates the best position on one axis, with its uncertainty, by a Gaussian process that is averaged over its parameters.

A sweep has only about eight positions, so a single fit of the parameters would understate the uncertainty. Sweeps of one task
at several model sizes have similar responses, so they share shape parameters, but not the noise. Intervals are valid if the
response is smooth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from advisor.model.space import FloatArray
from advisor.stats.surface import compress_costs

SEED = 0
NUMBER_OF_DRAWS = 1000
_GRID_SIZE = 101
_LENGTH_SCALES = np.geomspace(1.0, 6.0, 6) * math.log(2)
"""Length scales in natural logarithms of the position; they correspond to factors of 2 to 64."""
_SIGNAL_SDS = np.geomspace(0.1, 3.0, 4)
_NOISE_SDS = np.geomspace(0.02, 1.0, 8)
"""Standard deviations of the noise (and `_SIGNAL_SDS`: of the deviation from a parabola), in standard deviations of the values."""
_PARABOLA_VARIANCE = 4.0
"""Prior variance of the coefficients of the parabola, for positions scaled to -1 to 1."""
_LOG_NOISE_PRIOR = (math.log(0.2), 1.0)
"""(Mean, standard deviation) of the normal prior of the log standard deviation of the noise."""
_MAX_COST_DISTANCE = 10.0
"""Maximum absolute value of a drawn cost on the compressed scale, on which the best tried cost is 0."""

ProcessParameters = tuple[float, float, float]
"""(Length scale, signal, noise) of a Gaussian process."""


class Optimum(NamedTuple):
    """Posterior draws, shape (draws,), of the lowest point of the response in one sweep."""

    positions: FloatArray
    costs: FloatArray
    """Noise-free cost at each position."""


class _Sweep(NamedTuple):
    positions: FloatArray
    values: FloatArray
    """Costs on the compressed scale of `compress_costs`, standardised to mean 0 and variance 1."""
    costs: FloatArray
    mean: float
    spread: float


def estimate_optima(sweeps: Sequence[tuple[FloatArray, FloatArray]]) -> list[Optimum]:
    """Return the optimum of each sweep. A sweep is (positions, costs), both finite, shape (n,), with at least three distinct
    positions.

    Positions are natural logarithms, such as those of learning rates. Positions outside the sweep are not considered, so if many
    draws lie at an end of the sweep, the optimum may lie beyond this end.
    """
    standardised = [_standardise_sweep(*sweep) for sweep in sweeps]
    shapes = list(itertools.product(_LENGTH_SCALES, _SIGNAL_SDS))
    log_likelihoods = np.array([[[_log_likelihood(s, (*at, n)) for n in _NOISE_SDS] for at in shapes] for s in standardised])
    log_posterior = log_likelihoods - 0.5 * ((np.log(_NOISE_SDS) - _LOG_NOISE_PRIOR[0]) / _LOG_NOISE_PRIOR[1]) ** 2
    rng = np.random.default_rng(SEED)
    draws_per_shape = rng.multinomial(NUMBER_OF_DRAWS, special.softmax(special.logsumexp(log_posterior, axis=2).sum(0)))
    optima = []
    for sweep, own in zip(standardised, special.softmax(log_posterior, axis=2), strict=True):
        draws_per_noise = [rng.multinomial(n, p) for n, p in zip(draws_per_shape, own, strict=True)]
        parameters = [(*at, noise) for at in shapes for noise in _NOISE_SDS]
        draws = list(zip(parameters, np.concatenate(draws_per_noise).tolist(), strict=True))
        optima.append(_draw_optimum(sweep, draws, rng))
    return optima


def _standardise_sweep(positions: FloatArray, costs: FloatArray) -> _Sweep:
    compressed_costs = compress_costs(costs)
    mean, spread = float(compressed_costs.mean()), float(compressed_costs.std()) or 1.0
    return _Sweep(positions, (compressed_costs - mean) / spread, costs, mean, spread)


def _draw_optimum(sweep: _Sweep, parameters: Sequence[tuple[ProcessParameters, int]], rng: np.random.Generator) -> Optimum:
    grid = np.linspace(sweep.positions.min(), sweep.positions.max(), _GRID_SIZE)
    drawn = np.concatenate([_draw_responses(sweep, at, grid, count, rng) for at, count in parameters if count])
    best, middle = float(sweep.costs.min()), float(np.median(sweep.costs))
    lowest_values = np.clip(sweep.mean + sweep.spread * drawn.min(1), -_MAX_COST_DISTANCE, _MAX_COST_DISTANCE)
    return Optimum(grid[drawn.argmin(1)], best + ((middle - best) or 1.0) * np.sinh(lowest_values))


def _log_likelihood(sweep: _Sweep, at: ProcessParameters) -> float:
    root = np.linalg.cholesky(_noisy_covariance(sweep, at))
    return float(-0.5 * np.sum(np.linalg.solve(root, sweep.values) ** 2) - np.log(np.diag(root)).sum())


def _noisy_covariance(sweep: _Sweep, at: ProcessParameters) -> FloatArray:
    n = len(sweep.positions)
    return _response_covariance(sweep, sweep.positions, sweep.positions, at) + (at[2] ** 2 + 1e-8) * np.eye(n)


def _response_covariance(sweep: _Sweep, a: FloatArray, b: FloatArray, at: ProcessParameters) -> FloatArray:
    """Return the covariance (len(a), len(b)) of a response that is a parabola plus a smooth deviation."""
    length, signal, _ = at
    middle, half = sweep.positions.mean(), np.ptp(sweep.positions) / 2
    parabola_features = [np.vander((p - middle) / half, 3) for p in (a, b)]
    smooth_covariance = signal**2 * np.exp(-0.5 * ((a[:, None] - b[None, :]) / length) ** 2)
    return np.asarray(smooth_covariance + _PARABOLA_VARIANCE * parabola_features[0] @ parabola_features[1].T, dtype=np.float64)


def _draw_responses(sweep: _Sweep, at: ProcessParameters, points: FloatArray, n: int, rng: np.random.Generator) -> FloatArray:
    """Return `n` draws of the standardised response at the points, (n, points)."""
    cross = _response_covariance(sweep, sweep.positions, points, at)
    gain = np.linalg.solve(_noisy_covariance(sweep, at), cross)
    eigenvalues, axes = np.linalg.eigh(_response_covariance(sweep, points, points, at) - cross.T @ gain)
    root = axes * np.sqrt(np.maximum(eigenvalues, 0))
    return np.asarray(sweep.values @ gain + rng.standard_normal((n, len(points))) @ root.T, dtype=np.float64)
