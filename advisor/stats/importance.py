"""Estimates the importance of each hyperparameter, alone and in interactions, with its uncertainty, and tests interactions.

A Gaussian process with one relevance (inverse squared length scale) per axis is fitted to normal scores of the costs' ranks, so
huge losses have no effect. Relevances and noise are drawn from a normal approximation of their posterior, and one response for
each draw. The importance is Sobol's total index over the tried settings: a share of the variance between trials, including noise.
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
"""Minimum number of trials to estimate importances; with fewer, importances only reflect the prior."""
NUMBER_OF_DRAWS = 40
"""Number of posterior draws of the response."""
_FOURIER_FEATURES = 100
_COMPARED_POINTS = 5000
"""Approximate number of points at which responses are compared; with many axes, more points are compared."""
_MAX_ARRAY_ELEMENTS = 4_000_000
_REPLACEMENTS_PER_POINT = 4
_MIN_COMPARED_POINTS = 32
_MAX_LOG_RELEVANCE_SD = 3.0
"""Maximum posterior standard deviation of a log relevance: the standard deviation of its prior."""
_LOG_PARAMETER_BOUNDS = ((-8.0, 6.0), (-4.0, 4.0), (-9.0, 1.5))
_CHOICE_COORDINATE = 0.125**0.5
"""Coordinate of a choice on its one-hot axis, such that two choices are as far apart as half a numeric range."""
_MISSING_COORDINATE = 0.4
_JITTER = 1e-6
_NUMBER_OF_PERMUTATIONS = 999
_GRID_VALUES = 9
"""Number of values of an axis at which the best value of another axis is compared."""
_RELEVANCES = (1.0, 16.0)
_LOWEST_RETURNED_P = 0.01
"""Smallest p-value of `ResponseModel.p_value`, and significance level of a single axis."""
_MAX_SHUFFLES = 19
_MAX_SHUFFLED_TRIALS = 64


@dataclass(frozen=True)
class _ResponseDraw:
    """A function drawn from the posterior: a function of random Fourier features, plus a correction that fits it to the trials."""

    points: FloatArray
    """Scaled positions of the trials, (n, coordinates)."""
    scale: FloatArray
    signal: float
    noise: float
    weights: FloatArray
    features: tuple[FloatArray, FloatArray, FloatArray]
    """(Frequencies, phases, amplitudes), of shapes (coordinates, features), (features,) and (features,)."""

    def at(self, points: NDArray[np.float32]) -> FloatArray:
        """Return the response at points, shape (m, coordinates), in single precision, because errors of 0.001 are negligible."""
        scaled_points = points * self.scale.astype(np.float32)
        similarity = squared_distances(scaled_points, self.points.astype(np.float32))
        similarity *= np.float32(-0.5)
        np.exp(similarity, out=similarity)
        random_part = _random_prior_function(scaled_points, self.features)
        responses = similarity @ (self.signal * self.weights).astype(np.float32) + random_part
        return np.asarray(responses, dtype=np.float64)


def _random_prior_function(scaled: NDArray[Any], features: tuple[FloatArray, FloatArray, FloatArray]) -> NDArray[Any]:
    frequencies, phases, amplitudes = (f.astype(scaled.dtype) for f in features)
    angles = scaled @ frequencies
    angles += phases
    function_values: NDArray[Any] = np.cos(angles, out=angles) @ amplitudes
    return function_values


class ResponseModel:
    """Posterior draws of the response of results to all hyperparameters together."""

    def __init__(self, numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> None:
        """numeric, choices: positions on each axis, shape (n,), n >= 2, NaN if missing. costs: (n,), NaN for failed trials."""
        self.subset = choose_evenly_by_rank(costs)
        self.values = normal_scores(costs[self.subset])
        self.is_numeric = [True] * len(numeric) + [False] * len(choices)
        columns = zip([*numeric, *choices], self.is_numeric, strict=True)
        self.blocks = [axis_coordinates(u[self.subset], is_numeric) for u, is_numeric in columns]
        self.axes = len(self.blocks)
        self.points = np.hstack(self.blocks)
        self.axis_of = np.repeat(np.arange(self.axes), [b.shape[1] for b in self.blocks])
        self._distances = np.array([squared_distances(b, b) for b in self.blocks])
        self.mode = surface.fit_parameters(self.values, self._distances)
        self._draws = self._draw_responses()

    def p_value(self, others: Sequence[tuple[FloatArray, bool]] = ()) -> float:
        """Return the probability that shuffled results depend on the axes at least as strongly; at least 0.01.

        Each axis is tested alone. If no axis is significant, the likelihood of the whole response is compared with that of up to
        19 shuffles of at most 64 trials. others: (positions, True for a numeric axis) of each axis that the response lacks because
        its effect is weaker. The p-value then comes from tests of all single axes, including these, to correct for the selection.
        """
        rng = np.random.default_rng(SEED + 2)
        other_blocks = [axis_coordinates(u[self.subset], numeric) for u, numeric in others]
        p_single = p_value_of_blocks([*self.blocks, *other_blocks], self.values, rng)
        if p_single <= _LOWEST_RETURNED_P or other_blocks:
            return max(p_single, _LOWEST_RETURNED_P)
        chosen = np.sort(choose_evenly_by_rank(self.values, _MAX_SHUFFLED_TRIALS))
        values, distances = self.values[chosen], self._distances[:, chosen[:, None], chosen[None, :]]
        losses = []
        for shuffle in range(_MAX_SHUFFLES + 1):
            y = values if shuffle == 0 else rng.permutation(values)
            losses.append(surface.penalised_loss_and_gradient(surface.fit_parameters(y, distances), y, distances)[0])
            if shuffle and losses[-1] <= losses[0]:
                return 2 / (shuffle + 1)
        return 1 / (_MAX_SHUFFLES + 1)

    def p_value_within(self, axis: int, selected_trials: BoolArray) -> float:
        """Return the p-value of the effect of one axis among the trials in the mask `selected_trials`, shape (n,). The effects of
        all other axes, fitted to all trials, are removed first. Return 1 for fewer than `MIN_TRIALS_FOR_IMPORTANCE` trials."""
        is_selected = selected_trials[self.subset]
        if is_selected.sum() < MIN_TRIALS_FOR_IMPORTANCE:
            return 1.0
        others = np.delete(self._distances, axis, axis=0)
        residuals = surface.leave_one_out_residuals(self.values, others, np.delete(self.mode, axis))[is_selected]
        scores = stats.norm.ppf((stats.rankdata(residuals) - 0.5) / len(residuals))
        return p_value_of_blocks([self.blocks[axis][is_selected]], scores, np.random.default_rng(SEED + 3))

    def _draw_responses(self) -> list[_ResponseDraw]:
        rng = np.random.default_rng(SEED)
        curvatures, directions = np.linalg.eigh(
            curvature(lambda at: surface.penalised_loss_and_gradient(at, self.values, self._distances)[1], self.mode)
        )
        curvatures = np.maximum(curvatures, _MAX_LOG_RELEVANCE_SD**-2)
        low, high = np.array([_LOG_PARAMETER_BOUNDS[0]] * self.axes + list(_LOG_PARAMETER_BOUNDS[1:])).T
        parameter_steps = rng.standard_normal((NUMBER_OF_DRAWS, len(self.mode))) / np.sqrt(curvatures)
        return [self._draw_response(np.clip(self.mode + step @ directions.T, low, high), rng) for step in parameter_steps]

    def _draw_response(self, parameters: FloatArray, rng: np.random.Generator) -> _ResponseDraw:
        """Return a posterior draw for the given log relevances, log signal and log noise, by Matheron's rule."""
        n, p = self.points.shape
        signal, noise = np.exp(parameters[-2:])
        scale = np.sqrt(np.exp(parameters[:-2]))[self.axis_of]
        amplitudes = rng.standard_normal(_FOURIER_FEATURES) * np.sqrt(2 * signal / _FOURIER_FEATURES)
        features = rng.standard_normal((p, _FOURIER_FEATURES)), 2 * np.pi * rng.random(_FOURIER_FEATURES), amplitudes
        points = self.points * scale
        covariance = signal * np.exp(-0.5 * squared_distances(points, points)) + (noise + _JITTER) * np.eye(n)
        residuals = self.values - _random_prior_function(points, features) - np.sqrt(noise) * rng.standard_normal(n)
        weights = np.linalg.solve(covariance, residuals)
        return _ResponseDraw(points, scale, float(signal), float(noise), weights, features)

    def _replacement_trials(self) -> IntArray:
        """Return the indices of the trials that supply new positions on each axis for each point, shape (axes, points,
        repetitions). The supplying trials are evenly spaced in rank along the axis, to lower the sampling error."""
        rng, n = np.random.default_rng(SEED + 1), len(self.points)
        trials = []
        for block in self.blocks:
            order = np.lexsort((rng.random(n), *block.T))
            shifts = np.round(n * (np.arange(_REPLACEMENTS_PER_POINT) + 0.5) / _REPLACEMENTS_PER_POINT).astype(np.int64)
            shuffled_shifts = rng.permuted(np.tile(shifts, (n, 1)), axis=1)
            trials.append(order[(np.argsort(order)[:, None] + shuffled_shifts) % n])
        return np.array(trials)

    def _responses_at(self, sets: list[tuple[int, ...]]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (responses at trials, responses at points that take the axes of each set from other trials, total variances).

        Shapes: (draws, 1, points, 1), (draws, sets, points, repetitions) and (draws,). The total variance is the variance of the
        noise plus that of the response at points that mix the coordinates of different trials.
        """
        n = len(self.points)
        point_count = min(n, max(_COMPARED_POINTS // (_REPLACEMENTS_PER_POINT * (len(sets) + 1)), _MIN_COMPARED_POINTS))
        point_indices = np.linspace(0, n - 1, point_count).round().astype(np.int64)
        replacement_indices = self._replacement_trials()[:, point_indices]
        own_indices = np.broadcast_to(point_indices[:, None], replacement_indices.shape[1:])
        p = self.points.shape[1]
        sets_at_once = max(1, _MAX_ARRAY_ELEMENTS // (point_count * _REPLACEMENTS_PER_POINT * max(p, len(self.points))))
        response_blocks, point_blocks = [], [self.points[point_indices]]
        axis_sets = [*sets, tuple(range(self.axes))]
        for first in range(0, len(axis_sets), sets_at_once):
            for axes in axis_sets[first : first + sets_at_once]:
                coordinates = [b[replacement_indices[a] if a in axes else own_indices] for a, b in enumerate(self.blocks)]
                point_blocks.append(np.concatenate(coordinates, axis=2).reshape(-1, p))
            points = np.vstack(point_blocks).astype(np.float32)
            response_blocks.append(np.array([d.at(points) for d in self._draws]))
            point_blocks = []
        all_responses = np.concatenate(response_blocks, axis=1)
        unchanged, changed = (
            all_responses[:, None, :point_count, None],
            all_responses[:, point_count:].reshape(len(all_responses), len(sets) + 1, point_count, _REPLACEMENTS_PER_POINT),
        )
        return unchanged, changed[:, :-1], changed[:, -1].var(axis=(1, 2)) + np.array([d.noise for d in self._draws])

    def total_effects(self) -> FloatArray:
        """Return the importance of each axis with its interactions, as a share of the variance, shape (draws, axes)."""
        responses, changed_responses, variance = self._responses_at([(a,) for a in range(self.axes)])
        return np.asarray(0.5 * ((responses - changed_responses) ** 2).mean((2, 3)) / variance[:, None], dtype=np.float64)

    def interaction_effects(self, axes: Sequence[int]) -> dict[tuple[int, int], FloatArray]:
        """Return the importance of each interaction of two axes, as a share of the variance between trials, shape (draws,)."""
        pairs = list(combinations(sorted(axes), 2))
        responses, changed, variance = self._responses_at([*((a,) for a in axes), *pairs])
        by_axis = dict(zip(axes, np.moveaxis(changed, 1, 0), strict=False))
        effects = {}
        for j, (a, b) in enumerate(pairs):
            mixed_difference = responses[:, 0] - by_axis[a] - by_axis[b] + changed[:, len(axes) + j]
            effects[a, b] = np.asarray(0.25 * (mixed_difference**2).mean((1, 2)) / variance)
        return effects

    def best_value_moves(self, one: int, other: int) -> float:
        """Return the probability that the best value of one axis depends on the other axis, or the reverse.

        Of all pairs of values of one axis, the pair is chosen between which the best value of the other axis moves most in the
        mean of all draws. Numbers count only if some setting with them is better than the median trial. Returns the share of the
        draws in which each of the two best values is better than the other one at its own place. The effect of an axis may change
        with another axis although the best value stays, such as no dropout."""
        responses = self._responses_on_grid(one, other)
        both = (responses, self.is_numeric[other]), (responses.transpose(0, 2, 1), self.is_numeric[one])
        return max(_share_of_moves(draws, numeric) for draws, numeric in both)

    def _responses_on_grid(self, one: int, other: int) -> FloatArray:
        """Return the draws at pairs of tried values of two axes, (draws, values of one, values of the other); mean over the
        positions of some trials on all other axes."""
        n = len(self.points)
        count = min(_GRID_VALUES, n)
        ranks = np.linspace(0, n - 1, count).round().astype(np.int64)
        rows = [np.lexsort(self.blocks[axis].T)[ranks] for axis in (one, other)]
        rest = np.linspace(0, n - 1, _GRID_VALUES).round().astype(np.int64) if self.axes > 2 else np.zeros(1, int)
        index = {one: rows[0][:, None, None], other: rows[1][None, :, None]}
        shape = (count, count, len(rest))
        columns = [b[np.broadcast_to(index.get(axis, rest[None, None, :]), shape)] for axis, b in enumerate(self.blocks)]
        points = np.concatenate(columns, axis=3).reshape(-1, self.points.shape[1]).astype(np.float32)
        return np.array([draw.at(points).reshape(shape).mean(axis=2) for draw in self._draws])


def _share_of_moves(responses: FloatArray, numeric: bool) -> float:
    """Return the share of draws (draws, a, b) in which the best a differs between the two b at which it moves most."""
    mean = responses.mean(axis=0)
    best = mean.argmin(axis=0)
    columns = np.arange(mean.shape[1])
    loss = mean[best[:, None], columns] - mean[best[columns], columns]  # (b whose best a is used, b)
    useful = (mean.min(axis=0) <= 0) | (not numeric)  # A score of 0 is that of the median trial.
    loss[~(useful[:, None] & useful)] = 0.0
    first, second = np.unravel_index(np.argmax(np.minimum(loss, loss.T)), loss.shape)
    a, b = best[first], best[second]
    moves = (responses[:, a, first] < responses[:, b, first]) & (responses[:, b, second] < responses[:, a, second])
    return float(np.mean(moves))


def p_value_of_blocks(blocks: Iterable[FloatArray], values: FloatArray, rng: np.random.Generator) -> float:
    """Return the p-value of the hypothesis that `values`, shape (n,), depend on no axis (HSIC). blocks: (n, c)."""
    rows = np.vstack([values, rng.permuted(np.tile(values, (_NUMBER_OF_PERMUTATIONS, 1)), axis=1)])
    return p_value_of_kernels(rows, (centred_kernel(block, relevance) for block, relevance in product(blocks, _RELEVANCES)))


def p_value_of_kernels(observed_and_null: FloatArray, kernels: Iterable[FloatArray]) -> float:
    """Return the p-value of the hypothesis that the first row of `observed_and_null` is unrelated to all kernels, shape (n, n). The
    other rows are draws from the null distribution. The test statistic of a row is its smallest p-value over all kernels."""
    p = np.ones(len(observed_and_null))
    for k in kernels:
        dependence = ((observed_and_null @ k) * observed_and_null).sum(1)
        p = np.minimum(p, 1 - np.searchsorted(np.sort(dependence), dependence - 1e-12) / len(observed_and_null))
    return float(np.mean(p <= p[0] + 1e-12))


def centred_kernel(block: FloatArray, relevance: float) -> FloatArray:
    """Return the similarity of points along one axis as a doubly centred matrix, shape (n, n). block: coordinates, shape (n, c)."""
    k = np.exp(-0.5 * relevance * squared_distances(block, block))
    return np.asarray(k - k.mean(0) - k.mean(1)[:, None] + k.mean(), dtype=np.float64)


def axis_coordinates(positions: FloatArray, numeric: bool) -> FloatArray:
    """Return the coordinates of points on one axis, shape (n, c). Distances between coordinates equal those between positions; any
    two choices are equally far apart, and a missing position is at least 0.4 ranges away from any other."""
    is_known = np.isfinite(positions)
    if numeric:
        columns = [np.where(is_known, np.clip(positions, 0, 1), 0.5)]
    else:
        columns = [np.where(positions == level, _CHOICE_COORDINATE, 0.0) for level in np.unique(positions[is_known])]
    if not is_known.all():
        columns.append(np.where(is_known, 0.0, _MISSING_COORDINATE))
    return np.stack(columns, axis=1)


def squared_distances(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the squared distances, shape (n, m), between points a, shape (n, p), and points b, shape (m, p)."""
    distances: NDArray[Any] = a @ (-2 * b.T)
    distances += (a**2).sum(1)[:, None]
    distances += (b**2).sum(1)
    np.maximum(distances, 0, out=distances)
    return distances


def curvature(slopes: Callable[[FloatArray], FloatArray], at: FloatArray, step: float = 0.1) -> FloatArray:
    """Return the Hessian at the point `at`, by central finite differences of the gradient function `slopes`."""
    hessian_rows = np.array([(slopes(at + step * e) - slopes(at - step * e)) / (2 * step) for e in np.eye(len(at))])
    return np.asarray((hessian_rows + hessian_rows.T) / 2, dtype=np.float64)


# --- tests of interactions --------------------------------------------------------------------------------------------------------

NULL_HYPOTHESIS_DRAWS = 1999
"""Usual number of draws from the distribution of the test statistic if there are no interactions."""
MAX_NULL_HYPOTHESIS_DRAWS = 19_999
_KERNEL_RELEVANCES = (1.0, 16.0)
"""Inverse squared length scales of the kernels, which detect a gentle bend over the range and a sharp turn."""
_CLIFF_RELEVANCE = 200.0
"""Inverse squared length scale of a second function of each axis, which follows cliffs."""
_MIN_KERNEL_RELEVANCE, _MAX_KERNEL_RELEVANCE = 1.0, 60.0


def interaction_p_values(
    response: ResponseModel, pairs: list[tuple[int, int]], draws: int = NULL_HYPOTHESIS_DRAWS
) -> dict[tuple[int, int], float]:
    """Return, for each pair of axes, the probability that an additive response with noise shows at least as much interaction.

    The additive model has one smooth function per axis, with the relevances of `response` and variances by restricted maximum
    likelihood. The alternative adds a product of smooth functions of both axes, in a score test for each of four pairs of
    relevances. The smallest p-value is compared with that of data simulated from the additive model, and with that of the
    residuals of this model with random signs (wild bootstrap); the larger p-value counts. No correction for the number of pairs.
    """
    y = response.values - response.values.mean()
    n = len(y)
    relevances = np.clip(np.exp(response.mode[:-2]), _MIN_KERNEL_RELEVANCE, _MAX_KERNEL_RELEVANCE)
    axis_kernels = [centred_kernel(block, bend) for block, bend in zip(response.blocks, relevances, strict=True)]
    axis_kernels += [centred_kernel(block, _CLIFF_RELEVANCE) for block in response.blocks]
    variances = _fit_variances(y, axis_kernels)
    covariance = sum((v * k for v, k in zip(variances, axis_kernels, strict=False)), variances[-1] * np.eye(n))
    precision = np.linalg.inv(covariance)
    row_sums = precision.sum(0)
    precision = precision - np.outer(row_sums, row_sums) / row_sums.sum()
    eigenvalues, vectors = np.linalg.eigh(precision)
    precision_root = vectors * np.sqrt(np.maximum(eigenvalues, 0))
    drawn_statistics = np.random.default_rng(SEED).standard_normal((draws, n)) @ precision_root.T
    residuals = precision @ y
    signs = np.random.default_rng(SEED + 4).choice((-1.0, 1.0), (draws, n))
    # Where a cliff or a plateau makes ranks noisy in one part of the range, noise of equal variance shows less interaction than
    # the real noise does. Random signs keep the size of each residual.
    tests = [np.vstack([residuals, null]) for null in (drawn_statistics, residuals * signs)]
    kernels = {a: [centred_kernel(response.blocks[a], r) for r in _KERNEL_RELEVANCES] for pair in pairs for a in pair}
    p_values = {}
    for a, b in pairs:
        products = [k * m for k, m in product(kernels[a], kernels[b])]
        p_values[a, b] = max(p_value_of_kernels(rows, products) for rows in tests)
    return p_values


def draws_needed(level: float) -> int | None:
    """Return a number of draws that permits p-values as small as `level`; None if `MAX_NULL_HYPOTHESIS_DRAWS` are too few."""
    min_draws = math.ceil(1 / level) - 1
    return next((draws for draws in (NULL_HYPOTHESIS_DRAWS, MAX_NULL_HYPOTHESIS_DRAWS) if min_draws <= draws), None)


def _fit_variances(y: FloatArray, kernels: list[FloatArray]) -> FloatArray:
    """Return the variances that maximise the penalised likelihood: one for each kernel, and last that of the noise."""
    n, log_prior_means = len(y), np.array([-1.0] * len(kernels) + [-2.0])

    def loss(log_variances: FloatArray) -> tuple[float, FloatArray]:
        v = np.exp(log_variances)
        covariance = sum((x * k for x, k in zip(v, kernels, strict=False)), (v[-1] + 1e-8) * np.eye(n))
        root = np.linalg.cholesky(covariance)
        inverse_root = np.linalg.inv(root)
        precision = inverse_root.T @ inverse_root
        weights = precision @ y
        likelihood_slopes = np.outer(weights, weights) - precision
        loss_slopes = [-0.5 * x * np.sum(likelihood_slopes * k) for x, k in zip(v, kernels, strict=False)]
        scaled_deviation = (log_variances - log_prior_means) / 4
        penalised_loss = 0.5 * y @ weights + np.log(np.diag(root)).sum() + 2 * scaled_deviation @ scaled_deviation
        return float(penalised_loss), np.array([*loss_slopes, -0.5 * v[-1] * np.trace(likelihood_slopes)]) + scaled_deviation

    bounds = [(-9.0, 4.0)] * len(kernels) + [(-7.0, 2.0)]
    optimum = minimize(loss, log_prior_means, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60})
    return np.asarray(np.exp(optimum.x), dtype=np.float64)
