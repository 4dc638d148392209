"""Models the response to all hyperparameters by a Gaussian process, which includes interactions, unlike additive models."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.linalg import lapack
from scipy.optimize import minimize

from advisor.model.space import FloatArray, IntArray, RangeSide

SEED = 0
MAX_FITTED_POINTS = 80
"""Maximum number of points to fit: the points with the lowest values, because the region around the best point matters most."""
NUMBER_OF_DRAWS = 500
NUMBER_OF_PERMUTATIONS = 2999
_NUMBER_OF_AXIS_SHUFFLES = 399
_TESTED_RELEVANCES = (1.0, 16.0)
"""Relevances of the kernels in the test of an axis: a slow and a fast change along the axis."""
_GRID_POSITIONS = np.linspace(0, 1, 21)
_SQUARED_CHOICE_DISTANCE = 0.25
"""Squared distance between two choices, or between a known and a missing position: half a range, squared."""
_JITTER = 1e-6
TREND_SLOPE_VARIANCE = 0.3
"""Variance of the slopes of a linear trend, for values of variance 1 and axes of length 1. With a variance of 0.3, forecasts of
the next study were calibrated in simulations."""
_LOG_NOISE_STARTS = (-2.0, -5.0)
"""Log noise variances from which the fit starts. Two are tried because, from a bad start, the fit takes the response for noise."""
# Means and variances of the normal priors of the log relevance of an axis (inverse squared length scale), of the log signal
# variance, and of the log noise variance.
_PRIOR_MEAN = (0.0, 0.0, math.log(0.05))
_PRIOR_VARIANCE = (9.0, 2.25, 2.25)


class OptimumAtEnd(NamedTuple):
    """An end of an axis at which the best value probably lies if all other hyperparameters are as in the best points."""

    axis: int
    side: RangeSide
    probability: float
    p_value: float
    """Probability that shuffled positions on the axis fit the values equally well; not corrected for the number of axes."""


def find_ends_with_optimum(
    numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray, edge: float, certainty: float
) -> list[OptimumAtEnd]:
    """Return the ends of numeric axes, within `edge`, at which the best value lies with probability `certainty` or more.

    values: shape (n,), lower is better. The kernel has one relevance per axis, fitted by penalised maximum likelihood; other
    hyperparameters are as in the best few points. The p-value comes from a permutation test in a fit without the axis; the
    statistic is the slope of the likelihood in the relevance of the axis. The test is exact if positions on the axis were drawn
    independently.
    """
    lowest_first = np.argsort(values, kind="stable")[:MAX_FITTED_POINTS]
    y = values[lowest_first] - values[lowest_first].mean()
    if len(y) < 4 or not y.std() > 0:
        return []
    y = y / y.std()
    columns = [u[lowest_first] for u in (*numeric, *choices)]
    distances = np.array([_squared_distances(u, u, i < len(numeric)) for i, u in enumerate(columns)])
    parameters = fit_parameters(y, distances)
    ends = []
    for axis in range(len(numeric)):
        low, high = _chances_of_ends(y, columns, distances, parameters, axis, edge)
        side: RangeSide = "low" if low >= high else "high"
        probability = max(low, high)
        if probability >= certainty:
            p = _p_value_of_axis(y, np.delete(distances, axis, axis=0), np.delete(parameters, axis), columns[axis])
            ends.append(OptimumAtEnd(axis, side, probability, p))
    return ends


def draw_results_at_points(
    numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray, new: list[FloatArray]
) -> FloatArray:
    """Return draws of the noisy results of trials at m new points, shape (draws, m); empty if the values carry no information.

    The response includes a linear trend: without a trend, results beyond an end are expected to be average even if results
    improve towards the end. numeric, choices, values: positions and values of n known points. new: positions of the new points
    on each axis, shape (m,), numeric axes first; positions may lie outside of 0 to 1.
    """
    centre, spread = float(values.mean()), float(values.std())
    known_positions = [*numeric, *choices]
    if len(values) < 4 or not spread > 0:
        return np.empty((0, len(new[0]) if new else 0))
    y = (values - centre) / spread
    distances = np.array([_squared_distances(u, u, i < len(numeric)) for i, u in enumerate(known_positions)])
    parameters = fit_parameters(y, distances)
    covariance = _response_similarity(distances, parameters, len(y)) + TREND_SLOPE_VARIANCE * _linear_kernel(numeric, numeric)
    precision = root_and_inverse(covariance, math.exp(parameters[-1]) + _JITTER)[1]
    mean, root = _predict_at(parameters, known_positions, len(numeric), precision, y, new, TREND_SLOPE_VARIANCE)
    normal_draws = np.random.default_rng(SEED).standard_normal((2, NUMBER_OF_DRAWS, len(mean)))
    standardised_results = mean + normal_draws[0] @ root.T + math.sqrt(math.exp(parameters[-1])) * normal_draws[1]
    return np.asarray(centre + spread * standardised_results, dtype=np.float64)


def compress_costs(costs: FloatArray, quantile: float = 0.5) -> FloatArray:
    """Return the costs on an asinh scale, on which bad trials hide no differences between good ones. The unit is the distance
    of a quantile, by default the median, from the lowest cost."""
    best, unit = _lowest_cost_and_unit(costs, quantile)
    return np.asarray(np.arcsinh((costs - best) / unit), dtype=np.float64)


def expand_costs(compressed: FloatArray, costs: FloatArray, quantile: float = 0.5) -> FloatArray:
    """Convert values on the asinh scale of `compress_costs(costs, quantile)` to costs."""
    best, unit = _lowest_cost_and_unit(costs, quantile)
    return np.asarray(best + unit * np.sinh(np.clip(compressed, -20, 20)), dtype=np.float64)


def _lowest_cost_and_unit(costs: FloatArray, quantile: float) -> tuple[float, float]:
    """Return (lowest cost, distance of the quantile from it). If they are equal, the unit is the distance of the next higher cost,
    or 1 if all costs are equal."""
    lowest_cost = float(costs.min())
    unit = float(np.quantile(costs, quantile)) - lowest_cost
    if unit <= 0:
        unit = float((costs[costs > lowest_cost] - lowest_cost).min(initial=math.inf))
    return lowest_cost, unit if math.isfinite(unit) else 1.0


class ResponseSurface:
    """A response that is fitted to n >= 1 known points and predicts values at other points, also at positions outside of 0 to 1."""

    def __init__(self, numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray) -> None:
        self._columns, self._numeric = [*numeric, *choices], len(numeric)
        self._centre, self._spread = float(values.mean()), float(values.std()) or 1.0
        y = (values - self._centre) / self._spread
        distances = np.array([_squared_distances(u, u, i < self._numeric) for i, u in enumerate(self._columns)])
        starts = [np.array([*np.zeros(len(distances)), 0.0, noise]) for noise in _LOG_NOISE_STARTS]
        fits = [fit_parameters(y, distances, start) for start in starts]
        self._at = min(fits, key=lambda at: penalised_loss_and_gradient(at, y, distances)[0])
        self._precision = _response_kernel(distances, self._at, len(y))[1]
        self._weights, self._y = self._precision @ y, y
        self._distances = distances

    def p_value_of_axis(self, axis: int) -> float:
        """Return the probability that shuffled positions on an axis explain as much of what the other axes leave unexplained,
        alone or together with the others: the smallest p-value over three kernels, compared with that of the shuffles."""
        others, start = np.delete(self._distances, axis, axis=0), np.delete(self._at, axis)
        residuals = leave_one_out_residuals(self._y, others, start)
        residuals = residuals - residuals.mean()
        products, n = np.outer(residuals, residuals), len(residuals)
        flat, sharp = (np.exp(-0.5 * r * self._distances[axis]) for r in _TESTED_RELEVANCES)
        # Without the axis, the fit ignores another axis that only decides where on this axis the best value lies.
        together = products * _response_similarity(others, start, n)
        pairs = [(flat, products), (sharp, products), (sharp, together)]
        rng = np.random.default_rng(SEED)
        orders = [np.arange(n), *(rng.permutation(n) for _ in range(_NUMBER_OF_AXIS_SHUFFLES))]
        strengths = np.array([[float(np.vdot(kernel[np.ix_(o, o)], weights)) for kernel, weights in pairs] for o in orders])
        p = 1 - (stats.rankdata(strengths, method="min", axis=0) - 1) / len(orders)
        smallest = p.min(axis=1)
        return float(np.mean(smallest <= smallest[0] + 1e-12))

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise of one value."""
        return self._spread * math.sqrt(math.exp(self._at[-1]))

    def draw_responses(self, columns: list[FloatArray]) -> FloatArray:
        """Return draws of the response without noise at m points, shape (draws, m). columns: positions of the points on each axis,
        numeric axes first."""
        mean, root = _predict_at(self._at, self._columns, self._numeric, self._precision, self._y, columns, 0.0)
        normal_draws = np.random.default_rng(SEED).standard_normal((NUMBER_OF_DRAWS, len(mean)))
        return np.asarray(self._centre + self._spread * (mean + normal_draws @ root.T), dtype=np.float64)

    def draw_lowest_points(self, columns: list[FloatArray]) -> IntArray:
        """Return the index of the lowest of m points in each draw of the response, shape (draws,)."""
        return np.asarray(self.draw_responses(columns).argmin(1), dtype=np.int64)

    def predict(self, columns: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return (mean, standard deviation) of the response without noise at m points. columns: as for `draw_responses`."""
        relevance, signal = np.exp(self._at[:-2]), math.exp(self._at[-2])
        indexed_axes = enumerate(zip(relevance, self._columns, columns, strict=True))
        distances_to_known = sum(r * _squared_distances(v, u, i < self._numeric) for i, (r, u, v) in indexed_axes)
        cross_covariance = signal * np.exp(-0.5 * np.asarray(distances_to_known))
        response_variance = signal - ((cross_covariance @ self._precision) * cross_covariance).sum(1)
        standardised_sd = np.sqrt(np.maximum(response_variance, _JITTER))
        return self._centre + self._spread * (cross_covariance @ self._weights), self._spread * standardised_sd


def _predict_at(
    at: FloatArray, old: list[FloatArray], count: int, inverse: FloatArray, y: FloatArray, new: list[FloatArray], trend: float
) -> tuple[FloatArray, FloatArray]:
    """Return (mean, square root of the covariance) of the response at m new points, shapes (m,) and (m, m). at: fitted parameters.
    old, y: positions on each axis and standardised values of the known points. count: number of numeric axes, which come
    first. trend: variance of the slopes of a linear trend."""
    relevance, signal = np.exp(at[:-2]), math.exp(at[-2])
    indexed_axes = list(enumerate(zip(relevance, old, new, strict=True)))
    distances_to_known = sum(r * _squared_distances(v, u, i < count) for i, (r, u, v) in indexed_axes)
    distances_between_new = sum(r * _squared_distances(v, v, i < count) for i, (r, _, v) in indexed_axes)
    old_numbers, numbers = old[:count], new[:count]
    cross_covariance = signal * np.exp(-0.5 * np.asarray(distances_to_known)) + trend * _linear_kernel(numbers, old_numbers)
    covariance = signal * np.exp(-0.5 * np.asarray(distances_between_new)) + trend * _linear_kernel(numbers, numbers)
    covariance -= cross_covariance @ inverse @ cross_covariance.T
    return cross_covariance @ inverse @ y, _matrix_root(covariance)


def _linear_kernel(a: list[FloatArray], b: list[FloatArray]) -> FloatArray | float:
    """Return the scalar products of points relative to the middle of each axis. Missing positions count as the middle."""
    centred_pairs = [(np.nan_to_num(u, nan=0.5) - 0.5, np.nan_to_num(v, nan=0.5) - 0.5) for u, v in zip(a, b, strict=True)]
    return sum((np.outer(u, v) for u, v in centred_pairs), 0.0)


def _squared_distances(a: FloatArray, b: FloatArray, numeric: bool) -> FloatArray:
    """Return the squared distances between the positions a and b on one axis, shape (len(a), len(b))."""
    is_one_missing = np.isfinite(a)[:, None] != np.isfinite(b)[None, :]
    if not numeric:
        are_both_known = np.isfinite(a)[:, None] & np.isfinite(b)[None, :]
        return np.where(is_one_missing | (are_both_known & (a[:, None] != b[None, :])), _SQUARED_CHOICE_DISTANCE, 0.0)
    # No position on the axis is equally far from all others, so a missing position lies beside the middle of the axis.
    x, z = np.nan_to_num(a, nan=0.5), np.nan_to_num(b, nan=0.5)
    return np.asarray((x[:, None] - z[None, :]) ** 2 + np.where(is_one_missing, _SQUARED_CHOICE_DISTANCE, 0.0))


def _p_value_of_axis(y: FloatArray, distances: FloatArray, start: FloatArray, positions: FloatArray) -> float:
    """Return the probability that shuffled positions raise the likelihood of a model without the axis by as much as `positions`."""
    at = fit_parameters(y, distances, start)
    covariance, precision = _response_kernel(distances, at, len(y))
    weights = precision @ y
    likelihood_slopes = (np.outer(weights, weights) - precision) * covariance
    centred = np.where(np.isfinite(positions), positions, 0.5) - 0.5
    shuffled = np.random.default_rng(SEED).permuted(np.tile(centred, (NUMBER_OF_PERMUTATIONS, 1)), axis=1)
    rows = np.vstack([centred, shuffled])
    statistics = ((rows @ likelihood_slopes) * rows).sum(1) - rows**2 @ likelihood_slopes.sum(1)
    return float(np.mean(statistics >= statistics[0] - 1e-9 * abs(statistics[0])))


def _response_kernel(distances: FloatArray, at: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    covariance = _response_similarity(distances, at, n)
    return covariance, root_and_inverse(covariance, np.exp(at[-1]) + _JITTER)[1]


def _response_similarity(distances: FloatArray, at: FloatArray, n: int) -> FloatArray:
    signal_variance = np.exp(at[-2])
    if not len(distances):
        return np.full((n, n), signal_variance)
    return np.asarray(signal_variance * np.exp(-0.5 * np.tensordot(np.exp(at[:-2]), distances, 1)), dtype=np.float64)


def fit_parameters(y: FloatArray, distances: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Return the log relevances, log signal and log noise that maximise the penalised likelihood, shape (axes + 2,). y: values,
    shape (n,). distances: squared, shape (axes, n, n). start: by default, equal relevances."""
    start = np.array([*np.zeros(len(distances)), 0.0, -2.0]) if start is None else start
    bounds = [(-7.0, 5.0)] * len(distances) + [(-3.0, 4.0), (-9.0, 1.0)]
    options, data = {"maxiter": 60}, (y, distances)
    optimum = minimize(penalised_loss_and_gradient, start, data, "L-BFGS-B", jac=True, bounds=bounds, options=options)
    return np.asarray(optimum.x, dtype=np.float64)


def leave_one_out_residuals(y: FloatArray, distances: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Return each value minus its prediction from all other values. The parameters are fitted only once, to all values."""
    precision = _response_kernel(distances, fit_parameters(y, distances, start), len(y))[1]
    return np.asarray(precision @ y / precision.diagonal(), dtype=np.float64)


def penalised_loss_and_gradient(at: FloatArray, y: FloatArray, distances: FloatArray) -> tuple[float, FloatArray]:
    """Return (negative logarithm of the penalised likelihood, its gradient)."""
    n, relevance, noise = len(y), np.exp(at[:-2]), np.exp(at[-1])
    covariance = _response_similarity(distances, at, n)
    root, precision = root_and_inverse(covariance, noise + _JITTER)
    weights = precision @ y
    likelihood_slopes = np.outer(weights, weights) - precision
    weighted_slopes = likelihood_slopes * covariance
    relevance_slopes = 0.25 * relevance * (distances.reshape(len(relevance), n * n) @ weighted_slopes.ravel())
    gradient = np.array([*relevance_slopes, -0.5 * weighted_slopes.sum(), -0.5 * noise * np.trace(likelihood_slopes)])
    mean, variance = (np.array([x[0]] * len(relevance) + [*x[1:]]) for x in (_PRIOR_MEAN, _PRIOR_VARIANCE))
    loss = 0.5 * y @ weights + np.log(np.diag(root)).sum() + 0.5 * np.sum((at - mean) ** 2 / variance)
    return float(loss), gradient + (at - mean) / variance


def root_and_inverse(similarity: FloatArray, noise: float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Return (lower Cholesky root, inverse) of the covariance `similarity` plus the noise variance. LAPACK's routines for symmetric
    matrices need half the time of a general inversion. Raises LinAlgError if the covariance is not positive definite."""
    noisy_covariance = similarity.copy()
    noisy_covariance[np.diag_indices(len(noisy_covariance))] += noise
    root, status = lapack.dpotrf(noisy_covariance, lower=1)
    if status:
        raise np.linalg.LinAlgError("the covariance is not positive definite")
    lower_half = np.tril(lapack.dpotri(root, lower=1)[0])
    precision = lower_half + lower_half.T
    precision[np.diag_indices(len(noisy_covariance))] /= 2
    return root, precision


def _chances_of_ends(
    y: FloatArray, columns: list[FloatArray], distances: FloatArray, at: FloatArray, axis: int, edge: float
) -> tuple[float, float]:
    """Return the mean probabilities, over the best points, that the best value lies at the low and high end of an axis."""
    n, relevance, signal = len(y), np.exp(at[:-2]), math.exp(at[-2])
    precision = _response_kernel(distances, at, n)[1]
    distances_along_axis = relevance[axis] * _squared_distances(_GRID_POSITIONS, columns[axis], True)
    prior_covariance = signal * np.exp(-0.5 * relevance[axis] * _squared_distances(_GRID_POSITIONS, _GRID_POSITIONS, True))
    normal_draws = np.random.default_rng(SEED).standard_normal((NUMBER_OF_DRAWS, len(_GRID_POSITIONS)))
    other_axes = np.delete(np.arange(len(columns)), axis)
    low_chance = high_chance = 0.0
    best_points = range(max(3, n // 8))  # y is in ascending order
    for point in best_points:
        distances_on_other_axes = sum((relevance[k] * distances[k][point] for k in other_axes), np.zeros(n))
        cross_covariance = signal * np.exp(-0.5 * (distances_along_axis + distances_on_other_axes[None, :]))
        covariance = prior_covariance - cross_covariance @ precision @ cross_covariance.T
        drawn_responses = cross_covariance @ precision @ y + normal_draws @ _matrix_root(covariance).T
        best_positions = _GRID_POSITIONS[drawn_responses.argmin(1)]
        low_chance += float(np.mean(best_positions <= edge)) / len(best_points)
        high_chance += float(np.mean(best_positions >= 1 - edge)) / len(best_points)
    return low_chance, high_chance


def _matrix_root(covariance: FloatArray) -> FloatArray:
    """Return a square root of a covariance matrix, even if rounding made it slightly indefinite."""
    eigenvalues, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(eigenvalues, 0)), dtype=np.float64)
