"""Estimates the importance of each hyperparameter, alone and in interactions, with its uncertainty, and tests interactions.

A Gaussian process with one relevance (inverse squared length scale) per axis is fitted to normal scores of the costs' ranks, so
huge losses have no effect. Relevances and noise are drawn from a normal approximation of their posterior, each with one
response. The importance is Sobol's total index over the tried settings: a share of the variance between trials, including
noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize

from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.stats import surface
from advisor.stats.ranks import choose_evenly_by_rank, normal_scores

SEED = 0
MIN_TRIALS_FOR_IMPORTANCE = 8
"""Minimum number of trials; with fewer, importances only reflect the prior."""
NUMBER_OF_DRAWS = 40
"""Number of posterior draws of the response."""
_FOURIER_FEATURES = 100
_COMPARED_POINTS = 5000
"""Approximate number of points at which responses are compared; many axes need more."""
_MAX_ARRAY_ELEMENTS = 4_000_000
"""Maximum number of elements of the arrays of points computed at once."""
_REPLACEMENTS_PER_POINT = 4
_MIN_COMPARED_POINTS = 32
_MAX_LOG_RELEVANCE_SD = 3.0
"""Maximum posterior standard deviation of a log relevance, equal to that of its prior."""
_LOG_PARAMETER_BOUNDS = ((-8.0, 6.0), (-4.0, 4.0), (-9.0, 1.5))
"""Bounds (low, high) of log relevances, log signal variance and log noise variance."""
_CHOICE_COORDINATE = 0.125**0.5
"""Coordinate of a choice on its one-hot axis, such that choices are half a range apart."""
_MISSING_COORDINATE = 0.4
_JITTER = 1e-6
_NUMBER_OF_PERMUTATIONS = 999
_TEST_RELEVANCES = (1.0, 16.0)
"""Relevances of the permutation test's kernels: slow and fast changes along an axis."""
_LOWEST_RETURNED_P = 0.01
"""Smallest p-value of `Response.p_value`, and significance level of a single axis."""
_MAX_SHUFFLES = 19
_MAX_SHUFFLED_TRIALS = 64


@dataclass(frozen=True)
class _ResponseDraw:
    """A function drawn from the posterior: random Fourier features, plus a correction that fits it to the trials."""

    points: FloatArray
    """Scaled positions of the trials, (n, coordinates)."""
    scale: FloatArray
    """Scale factor of each coordinate, shape (coordinates,)."""
    signal: float
    noise: float
    weights: FloatArray
    features: tuple[FloatArray, FloatArray, FloatArray]
    """(Frequencies, phases, amplitudes), of shapes (coordinates, features), (features,) and (features,)."""

    def at(self, points: NDArray[np.float32]) -> FloatArray:
        """Return the response at points, (m, coordinates), in single precision: errors of 0.001 are negligible."""
        scaled = points * self.scale.astype(np.float32)
        similar = squared_distances(scaled, self.points.astype(np.float32))
        similar *= np.float32(-0.5)
        np.exp(similar, out=similar)
        values = similar @ (self.signal * self.weights).astype(np.float32) + _random_prior_function(scaled, self.features)
        return np.asarray(values, dtype=np.float64)


def _random_prior_function(scaled: NDArray[Any], features: tuple[FloatArray, FloatArray, FloatArray]) -> NDArray[Any]:
    """Return the values of a random function from the prior (random Fourier features of Rahimi and Recht)."""
    frequencies, phases, amplitudes = (f.astype(scaled.dtype) for f in features)
    angles = scaled @ frequencies
    angles += phases
    waves: NDArray[Any] = np.cos(angles, out=angles) @ amplitudes
    return waves


class Response:
    """Posterior draws of the response of results to all hyperparameters together."""

    def __init__(self, numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> None:
        """numeric, choices: positions (n,) of each axis, NaN if missing; costs: (n,), NaN for failed trials; n >= 2."""
        self.subset = subset = choose_evenly_by_rank(costs)
        self.values = normal_scores(costs[subset])
        self.blocks = [
            *(axis_coordinates(u[subset], True) for u in numeric),
            *(axis_coordinates(u[subset], False) for u in choices),
        ]
        self.axes = len(self.blocks)
        self.points = np.hstack(self.blocks)
        self.axis_of = np.repeat(np.arange(self.axes), [b.shape[1] for b in self.blocks])
        self._distances = np.array([squared_distances(b, b) for b in self.blocks])
        self.mode = surface.fit_parameters(self.values, self._distances)
        self._draws = self._draw_responses()

    def p_value(self, others: Sequence[tuple[FloatArray, bool]] = ()) -> float:
        """Return the probability that shuffled results depend on the axes at least as strongly; at least 0.01.

        Each axis is tested alone. If none is significant, the likelihood of the whole response is compared with that of up to
        19 shuffles of at most 64 trials. others: (positions (n,), True for a numeric axis) of axes that the response lacks
        because their effect is weaker; with these, only single axes are tested, to correct for the selection.
        """
        rng = np.random.default_rng(SEED + 2)
        other_blocks = [axis_coordinates(u[self.subset], numeric) for u, numeric in others]
        p_single = p_value_of_blocks([*self.blocks, *other_blocks], self.values, rng)
        if p_single <= _LOWEST_RETURNED_P or other_blocks:
            return max(p_single, _LOWEST_RETURNED_P)
        subset = np.sort(choose_evenly_by_rank(self.values, _MAX_SHUFFLED_TRIALS))
        values, distances = self.values[subset], self._distances[:, subset[:, None], subset[None, :]]
        losses = []
        for shuffle in range(_MAX_SHUFFLES + 1):
            y = values if shuffle == 0 else rng.permutation(values)
            losses.append(surface.loss_and_slopes(surface.fit_parameters(y, distances), y, distances)[0])
            if shuffle and losses[-1] <= losses[0]:
                return 2 / (shuffle + 1)
        return 1 / (_MAX_SHUFFLES + 1)

    def p_value_within(self, axis: int, selected_trials: BoolArray) -> float:
        """Return the p-value of the effect of one axis among the selected trials, mask (n,), after removing the effects of all
        other axes as fitted to all trials; 1 for fewer than `MIN_TRIALS_FOR_IMPORTANCE` trials."""
        members = selected_trials[self.subset]
        if members.sum() < MIN_TRIALS_FOR_IMPORTANCE:
            return 1.0
        unexplained = surface.leave_one_out_residuals(
            self.values, np.delete(self._distances, axis, axis=0), np.delete(self.mode, axis)
        )[members]
        scores = stats.norm.ppf((stats.rankdata(unexplained) - 0.5) / len(unexplained))
        return p_value_of_blocks([self.blocks[axis][members]], scores, np.random.default_rng(SEED + 3))

    def _draw_responses(self) -> list[_ResponseDraw]:
        rng = np.random.default_rng(SEED)
        curvatures, directions = np.linalg.eigh(
            curvature(lambda at: surface.loss_and_slopes(at, self.values, self._distances)[1], self.mode)
        )
        curvatures = np.maximum(curvatures, _MAX_LOG_RELEVANCE_SD**-2)
        low, high = np.array([_LOG_PARAMETER_BOUNDS[0]] * self.axes + list(_LOG_PARAMETER_BOUNDS[1:])).T
        steps = rng.standard_normal((NUMBER_OF_DRAWS, len(self.mode))) / np.sqrt(curvatures)
        return [self._draw_response(np.clip(self.mode + step @ directions.T, low, high), rng) for step in steps]

    def _draw_response(self, parameters: FloatArray, rng: np.random.Generator) -> _ResponseDraw:
        """Return a posterior draw for the given log relevances, log signal and log noise, by Matheron's rule."""
        n, p = self.points.shape
        signal, noise = np.exp(parameters[-2:])
        scale = np.sqrt(np.exp(parameters[:-2]))[self.axis_of]
        amplitudes = rng.standard_normal(_FOURIER_FEATURES) * np.sqrt(2 * signal / _FOURIER_FEATURES)
        features = rng.standard_normal((p, _FOURIER_FEATURES)), 2 * np.pi * rng.random(_FOURIER_FEATURES), amplitudes
        scaled = self.points * scale
        covariance = signal * np.exp(-0.5 * squared_distances(scaled, scaled)) + (noise + _JITTER) * np.eye(n)
        residual = self.values - _random_prior_function(scaled, features) - np.sqrt(noise) * rng.standard_normal(n)
        return _ResponseDraw(scaled, scale, float(signal), float(noise), np.linalg.solve(covariance, residual), features)

    def _replacement_trials(self) -> IntArray:
        """Return the trials whose positions replace a point's position on an axis, (axes, points, repetitions), evenly spaced
        in rank along the axis to lower the sampling error."""
        rng, n = np.random.default_rng(SEED + 1), len(self.points)
        trials = []
        for block in self.blocks:
            order = np.lexsort((rng.random(n), *block.T))
            shifts = np.round(n * (np.arange(_REPLACEMENTS_PER_POINT) + 0.5) / _REPLACEMENTS_PER_POINT).astype(np.int64)
            shuffled = rng.permuted(np.tile(shifts, (n, 1)), axis=1)
            trials.append(order[(np.argsort(order)[:, None] + shuffled) % n])
        return np.array(trials)

    def _responses_at(self, sets: list[tuple[int, ...]]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (responses at the trials, responses with the axes of each set taken from other trials, total variances).

        Shapes: (draws, 1, points, 1), (draws, sets, points, repetitions) and (draws,). The total variance is that of the noise
        plus that of the response at points that mix the coordinates of different trials.
        """
        n = len(self.points)
        count = min(n, max(_COMPARED_POINTS // (_REPLACEMENTS_PER_POINT * (len(sets) + 1)), _MIN_COMPARED_POINTS))
        base = np.linspace(0, n - 1, count).round().astype(np.int64)
        other_positions = self._replacement_trials()[:, base]
        same_position = np.broadcast_to(base[:, None], other_positions.shape[1:])
        p = self.points.shape[1]
        sets_at_once = max(1, _MAX_ARRAY_ELEMENTS // (count * _REPLACEMENTS_PER_POINT * max(p, len(self.points))))
        values, places = [], [self.points[base]]
        all_sets = [*sets, tuple(range(self.axes))]
        for first in range(0, len(all_sets), sets_at_once):
            for axes in all_sets[first : first + sets_at_once]:
                columns = [b[other_positions[a] if a in axes else same_position] for a, b in enumerate(self.blocks)]
                places.append(np.concatenate(columns, axis=2).reshape(-1, p))
            points = np.vstack(places).astype(np.float32)
            values.append(np.array([d.at(points) for d in self._draws]))
            places = []
        all_values = np.concatenate(values, axis=1)
        unchanged, changed = (
            all_values[:, None, :count, None],
            all_values[:, count:].reshape(len(all_values), len(sets) + 1, count, _REPLACEMENTS_PER_POINT),
        )
        return unchanged, changed[:, :-1], changed[:, -1].var(axis=(1, 2)) + np.array([d.noise for d in self._draws])

    def total_effects(self) -> FloatArray:
        """Return the importance of each axis, with interactions, as a share of the variance between trials, (draws, axes)."""
        base, swapped, variance = self._responses_at([(a,) for a in range(self.axes)])
        return np.asarray(0.5 * ((base - swapped) ** 2).mean((2, 3)) / variance[:, None], dtype=np.float64)

    def interaction_effects(self, axes: Sequence[int]) -> dict[tuple[int, int], FloatArray]:
        """Return the importance of each interaction of two axes, as a share of the variance between trials, (draws,)."""
        pairs = list(combinations(sorted(axes), 2))
        base, swapped, variance = self._responses_at([*((a,) for a in axes), *pairs])
        single = dict(zip(axes, np.moveaxis(swapped, 1, 0), strict=False))
        crossed = [base[:, 0] - single[a] - single[b] + swapped[:, len(axes) + j] for j, (a, b) in enumerate(pairs)]
        return {pair: np.asarray(0.25 * (c**2).mean((1, 2)) / variance) for pair, c in zip(pairs, crossed, strict=True)}


def p_value_of_blocks(blocks: Iterable[FloatArray], values: FloatArray, rng: np.random.Generator) -> float:
    """Return the p-value of the hypothesis that `values`, (n,), depend on no block of coordinates, (n, c) (HSIC)."""
    rows = np.vstack([values, rng.permuted(np.tile(values, (_NUMBER_OF_PERMUTATIONS, 1)), axis=1)])
    return p_value_of_kernels(
        rows, (centred_kernel(block, relevance) for block, relevance in product(blocks, _TEST_RELEVANCES))
    )


def p_value_of_kernels(rows: FloatArray, kernels: Iterable[FloatArray]) -> float:
    """Return the p-value of the hypothesis that the first row is unrelated to each of the kernels (n, n). Other rows (n,) are
    draws from the null distribution; the test statistic of a row is its smallest p-value over all kernels."""
    p = np.ones(len(rows))
    for k in kernels:
        strength = ((rows @ k) * rows).sum(1)
        p = np.minimum(p, 1 - np.searchsorted(np.sort(strength), strength - 1e-12) / len(rows))
    return float(np.mean(p <= p[0] + 1e-12))


def centred_kernel(block: FloatArray, relevance: float) -> FloatArray:
    """Return the similarity of points, (n, c), along one axis, as a doubly centred matrix (n, n)."""
    k = np.exp(-0.5 * relevance * squared_distances(block, block))
    return np.asarray(k - k.mean(0) - k.mean(1)[:, None] + k.mean(), dtype=np.float64)


def axis_coordinates(positions: FloatArray, numeric: bool) -> FloatArray:
    """Return the coordinates of points on one axis, (n, c), in which distances equal those of positions, different choices are
    equally far apart, and a missing position is half a range away from all others."""
    is_known = np.isfinite(positions)
    if numeric:
        columns = [np.where(is_known, np.clip(positions, 0, 1), 0.5)]
    else:
        columns = [np.where(positions == level, _CHOICE_COORDINATE, 0.0) for level in np.unique(positions[is_known])]
    if not is_known.all():
        columns.append(np.where(is_known, 0.0, _MISSING_COORDINATE))
    return np.stack(columns, axis=1)


def squared_distances(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the squared distances (n, m) between the points a (n, p) and b (m, p)."""
    distances: NDArray[Any] = a @ (-2 * b.T)
    distances += (a**2).sum(1)[:, None]
    distances += (b**2).sum(1)
    np.maximum(distances, 0, out=distances)
    return distances


def curvature(slopes: Callable[[FloatArray], FloatArray], at: FloatArray, step: float = 0.1) -> FloatArray:
    """Return the Hessian at a point by central finite differences of the gradient `slopes`."""
    rows = np.array([(slopes(at + step * e) - slopes(at - step * e)) / (2 * step) for e in np.eye(len(at))])
    return np.asarray((rows + rows.T) / 2, dtype=np.float64)


# --- tests of interactions --------------------------------------------------------------------------------------------------------

NULL_HYPOTHESIS_DRAWS = 1999
"""Usual number of draws from the distribution of the test statistic without interactions."""
MAX_NULL_HYPOTHESIS_DRAWS = 19_999
_KERNEL_RELEVANCES = (1.0, 16.0)
"""Inverse squared length scales of the kernels: a gentle bend over the range, and a sharp turn."""
_MIN_KERNEL_RELEVANCE, _MAX_KERNEL_RELEVANCE = 1.0, 60.0


def interaction_p_values(
    response: Response, pairs: list[tuple[int, int]], draws: int = NULL_HYPOTHESIS_DRAWS
) -> dict[tuple[int, int], float]:
    """Return, for each pair of axes, the probability that an additive response with noise shows at least as much interaction.

    The additive model has one smooth function per axis, with the relevances of `response` and variances by restricted maximum
    likelihood. The alternative adds a product of smooth functions of both axes, in a score test for each of four pairs of
    relevances. The smallest p-value is compared with that of data simulated from the additive model. No correction for the
    number of pairs.
    """
    y = response.values - response.values.mean()
    n = len(y)
    relevances = np.clip(np.exp(response.mode[:-2]), _MIN_KERNEL_RELEVANCE, _MAX_KERNEL_RELEVANCE)
    kernels = [centred_kernel(block, bend) for block, bend in zip(response.blocks, relevances, strict=True)]
    variances = _fit_variances(y, kernels)
    covariance = sum((v * k for v, k in zip(variances, kernels, strict=False)), variances[-1] * np.eye(n))
    precision = np.linalg.inv(covariance)
    row_sums = precision.sum(0)
    precision = precision - np.outer(row_sums, row_sums) / row_sums.sum()
    values, vectors = np.linalg.eigh(precision)
    root = vectors * np.sqrt(np.maximum(values, 0))
    drawn_statistics = np.random.default_rng(SEED).standard_normal((draws, n)) @ root.T
    rows = np.vstack([precision @ y, drawn_statistics])
    shapes = {
        a: [centred_kernel(response.blocks[a], relevance) for relevance in _KERNEL_RELEVANCES] for pair in pairs for a in pair
    }
    return {(a, b): p_value_of_kernels(rows, (k * m for k, m in product(shapes[a], shapes[b]))) for a, b in pairs}


def draws_needed(level: float) -> int | None:
    """Return a number of draws for p-values as small as `level`; None if `MAX_NULL_HYPOTHESIS_DRAWS` are too few."""
    number = math.ceil(1 / level) - 1
    return next((draws for draws in (NULL_HYPOTHESIS_DRAWS, MAX_NULL_HYPOTHESIS_DRAWS) if number <= draws), None)


def _fit_variances(y: FloatArray, kernels: list[FloatArray]) -> FloatArray:
    """Return the variances of the kernels that maximise the penalised likelihood, then the noise variance."""
    n, prior = len(y), np.array([-1.0] * len(kernels) + [-2.0])

    def loss(log_variances: FloatArray) -> tuple[float, FloatArray]:
        v = np.exp(log_variances)
        covariance = sum((x * k for x, k in zip(v, kernels, strict=False)), (v[-1] + 1e-8) * np.eye(n))
        root = np.linalg.cholesky(covariance)
        inverse = np.linalg.inv(root)
        precision = inverse.T @ inverse
        weights = precision @ y
        likelihood_slopes = np.outer(weights, weights) - precision
        slopes = [-0.5 * x * np.sum(likelihood_slopes * k) for x, k in zip(v, kernels, strict=False)]
        deviation = (log_variances - prior) / 4
        value = 0.5 * y @ weights + np.log(np.diag(root)).sum() + 2 * deviation @ deviation
        return float(value), np.array([*slopes, -0.5 * v[-1] * np.trace(likelihood_slopes)]) + deviation

    bounds = [(-9.0, 4.0)] * len(kernels) + [(-7.0, 2.0)]
    result = minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return np.asarray(np.exp(result.x), dtype=np.float64)
