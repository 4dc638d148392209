"""Estimates the best position on one axis, with its uncertainty, by a Gaussian process that is averaged over its parameters.

A sweep has only about eight positions, so fitted parameters would understate the uncertainty. Sweeps of one task at several
sizes have similar responses, so they share shape parameters, but not the noise. Intervals are valid if the response is smooth;
a kink at the lowest point shifts the estimate by up to a third of the distance between positions.
"""

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
"""Length scales in natural logarithms: factors of 2 to 64."""
_SIGNAL_SDS = np.geomspace(0.1, 3.0, 4)
_NOISE_SDS = np.geomspace(0.02, 1.0, 8)
"""Standard deviations of the noise, and of the deviation from a parabola, relative to that of the values."""
_PARABOLA_VARIANCE = 4.0
"""Prior variance of its coefficients, for positions scaled to -1 to 1."""
_LOG_NOISE_PRIOR = (math.log(0.2), 1.0)
"""(Mean, standard deviation) of the normal prior."""
_MAX_COST_DISTANCE = 10.0
"""Maximum distance of a drawn value from the best one, on the compressed scale."""

ProcessParameters = tuple[float, float, float]
"""(Length scale, signal, noise) of a Gaussian process."""


class Optimum(NamedTuple):
    """Posterior draws, (DRAWS,), of the lowest point of the response in one sweep."""

    positions: FloatArray
    costs: FloatArray
    """Noise-free cost at each position."""


class _Sweep(NamedTuple):
    positions: FloatArray
    values: FloatArray
    """Costs on a compressed scale, standardised."""
    costs: FloatArray
    mean: float
    spread: float


def estimate_optima(sweeps: Sequence[tuple[FloatArray, FloatArray]]) -> list[Optimum]:
    """Return the optimum of each sweep (positions, costs), finite, (n,), with at least three different positions.

    Positions are natural logarithms, such as those of learning rates. Positions outside the sweep are not considered: if many
    draws lie at an end, the optimum may lie beyond it.
    """
    known = [_standardise_sweep(*sweep) for sweep in sweeps]
    shapes = list(itertools.product(_LENGTH_SCALES, _SIGNAL_SDS))
    likelihoods = np.array([[[_log_likelihood(s, (*at, n)) for n in _NOISE_SDS] for at in shapes] for s in known])
    posterior = likelihoods - 0.5 * ((np.log(_NOISE_SDS) - _LOG_NOISE_PRIOR[0]) / _LOG_NOISE_PRIOR[1]) ** 2
    rng = np.random.default_rng(SEED)
    counts = rng.multinomial(NUMBER_OF_DRAWS, special.softmax(special.logsumexp(posterior, axis=2).sum(0)))
    found = []
    for sweep, own in zip(known, special.softmax(posterior, axis=2), strict=True):
        noises = [rng.multinomial(n, p) for n, p in zip(counts, own, strict=True)]
        parameters = [
            ((*at, noise), int(n))
            for at, row in zip(shapes, noises, strict=True)
            for noise, n in zip(_NOISE_SDS, row, strict=True)
        ]
        found.append(_draw_optimum(sweep, parameters, rng))
    return found


def _standardise_sweep(positions: FloatArray, costs: FloatArray) -> _Sweep:
    values = compress_costs(costs)
    mean, spread = float(values.mean()), float(values.std()) or 1.0
    return _Sweep(positions, (values - mean) / spread, costs, mean, spread)


def _draw_optimum(sweep: _Sweep, parameters: Sequence[tuple[ProcessParameters, int]], rng: np.random.Generator) -> Optimum:
    points = np.linspace(sweep.positions.min(), sweep.positions.max(), _GRID_SIZE)
    drawn = np.concatenate([_draw_responses(sweep, at, points, count, rng) for at, count in parameters if count])
    best, middle = float(sweep.costs.min()), float(np.median(sweep.costs))
    lowest = np.clip(sweep.mean + sweep.spread * drawn.min(1), -_MAX_COST_DISTANCE, _MAX_COST_DISTANCE)
    return Optimum(points[drawn.argmin(1)], best + ((middle - best) or 1.0) * np.sinh(lowest))


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
    parabola = [np.vander((p - middle) / half, 3) for p in (a, b)]
    smooth = signal**2 * np.exp(-0.5 * ((a[:, None] - b[None, :]) / length) ** 2)
    return np.asarray(smooth + _PARABOLA_VARIANCE * parabola[0] @ parabola[1].T, dtype=np.float64)


def _draw_responses(
    sweep: _Sweep, at: ProcessParameters, points: FloatArray, count: int, rng: np.random.Generator
) -> FloatArray:
    """Return draws of the standardised response at the points, (count, points)."""
    cross = _response_covariance(sweep, sweep.positions, points, at)
    gain = np.linalg.solve(_noisy_covariance(sweep, at), cross)
    variance, axes = np.linalg.eigh(_response_covariance(sweep, points, points, at) - cross.T @ gain)
    root = axes * np.sqrt(np.maximum(variance, 0))
    return np.asarray(sweep.values @ gain + rng.standard_normal((count, len(points))) @ root.T, dtype=np.float64)
