"""Models the response to all hyperparameters by a Gaussian process, which includes interactions that additive models miss."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack
from scipy.optimize import minimize

from advisor.model.space import FloatArray, IntArray, RangeSide

SEED = 0
MAX_FITTED_POINTS = 80
"""Maximum number of points to fit: those with the lowest values, because the region around the best matters most."""
NUMBER_OF_DRAWS = 500
NUMBER_OF_PERMUTATIONS = 2999
_GRID_POSITIONS = np.linspace(0, 1, 21)
_SQUARED_CHOICE_DISTANCE = 0.25
"""Squared distance between two choices, or a present and a missing position: half a range."""
_JITTER = 1e-6
TREND_SLOPE_VARIANCE = 0.3
"""Variance of the slopes of a linear trend, for values of variance 1 and axes of length 1. With it, forecasts of the next study
were calibrated on development seeds of the closed loop."""
_LOG_NOISE_STARTS = (-2.0, -5.0)
"""From a bad starting point, the fit takes the response for noise, so two log noise values are tried."""
# Means and variances of the normal priors of an axis's log relevance (inverse squared length scale), of the log signal and of
# the log noise.
_PRIOR_MEAN = (0.0, 0.0, math.log(0.05))
_PRIOR_VARIANCE = (9.0, 2.25, 2.25)


class EndWithOptimum(NamedTuple):
    """An end of an axis at which the best value lies, with other hyperparameters near the best points."""

    axis: int
    side: RangeSide
    probability: float
    p_value: float
    """Probability that shuffled positions on the axis fit equally well; not corrected for the number of axes."""


def find_ends_with_optimum(
    numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray, edge: float, certainty: float
) -> list[EndWithOptimum]:
    """Return the ends of numeric axes, within `edge`, at which the best value lies with probability `certainty` or more.

    values: (n,), lower is better. The kernel has one relevance per axis, fitted by penalised maximum likelihood; other
    hyperparameters are as in the best few points. The p-value comes from a permutation test whose statistic is the slope of the
    likelihood in the axis's relevance, in a fit without the axis; it is exact if positions on the axis were drawn
    independently.
    """
    order = np.argsort(values, kind="stable")[:MAX_FITTED_POINTS]
    y = values[order] - values[order].mean()
    if len(y) < 4 or not y.std() > 0:
        return []
    y = y / y.std()
    columns = [u[order] for u in (*numeric, *choices)]
    distances = np.array([_squared_distances(u, u, i < len(numeric)) for i, u in enumerate(columns)])
    at = fit_parameters(y, distances)
    found = []
    for axis in range(len(numeric)):
        low, high = _chances_of_ends(y, columns, distances, at, axis, edge)
        side: RangeSide = "low" if low >= high else "high"
        probability = max(low, high)
        if probability >= certainty:
            p = _p_value_of_axis(y, np.delete(distances, axis, axis=0), np.delete(at, axis), columns[axis])
            found.append(EndWithOptimum(axis, side, probability, p))
    return found


def draw_results_at(
    numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray, new: list[FloatArray]
) -> FloatArray:
    """Return draws of the noisy results of trials at m other points, (DRAWS, m); empty if the values carry no information.

    The response includes a linear trend: without it, results beyond an end are expected to be average even if they improve
    towards the end. numeric, choices, values: n known points; new: positions (m,) of the other points, numeric axes first,
    possibly outside 0..1.
    """
    centre, spread = float(values.mean()), float(values.std())
    columns = [*numeric, *choices]
    if len(values) < 4 or not spread > 0:
        return np.empty((0, len(new[0]) if new else 0))
    y = (values - centre) / spread
    distances = np.array([_squared_distances(u, u, i < len(numeric)) for i, u in enumerate(columns)])
    at = fit_parameters(y, distances)
    similar = _response_similarity(distances, at, len(y)) + TREND_SLOPE_VARIANCE * _linear_kernel(numeric, numeric)
    precision = root_and_inverse(similar, math.exp(at[-1]) + _JITTER)[1]
    mean, root = _predict_at(at, columns, len(numeric), precision, y, new, trend=TREND_SLOPE_VARIANCE)
    normal = np.random.default_rng(SEED).standard_normal((2, NUMBER_OF_DRAWS, len(mean)))
    drawn = mean + normal[0] @ root.T + math.sqrt(math.exp(at[-1])) * normal[1]
    return np.asarray(centre + spread * drawn, dtype=np.float64)


def compress_costs(costs: FloatArray, quantile: float = 0.5) -> FloatArray:
    """Return the costs on an asinh scale, so that bad trials hide no differences. The unit is the distance of a quantile, by
    default the median, from the lowest cost."""
    best, unit = _scale_of_costs(costs, quantile)
    return np.asarray(np.arcsinh((costs - best) / unit), dtype=np.float64)


def expand_costs(compressed: FloatArray, costs: FloatArray, quantile: float = 0.5) -> FloatArray:
    """Convert values on the asinh scale of `compress_costs(costs, quantile)` to costs."""
    best, unit = _scale_of_costs(costs, quantile)
    return np.asarray(best + unit * np.sinh(np.clip(compressed, -20, 20)), dtype=np.float64)


def _scale_of_costs(costs: FloatArray, quantile: float) -> tuple[float, float]:
    """Return (lowest cost, distance of the quantile from it)."""
    best = float(costs.min())
    unit = float(np.quantile(costs, quantile)) - best
    return best, unit if unit > 0 else 1.0


class ResponseSurface:
    """A response that is fitted to n >= 1 known points and predicts values at other points, also outside of 0..1."""

    def __init__(self, numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray) -> None:
        self._columns, self._numeric = [*numeric, *choices], len(numeric)
        self._centre, self._spread = float(values.mean()), float(values.std()) or 1.0
        y = (values - self._centre) / self._spread
        distances = np.array([_squared_distances(u, u, i < self._numeric) for i, u in enumerate(self._columns)])
        starts = [np.array([*np.zeros(len(distances)), 0.0, noise]) for noise in _LOG_NOISE_STARTS]
        self._at = min((fit_parameters(y, distances, s) for s in starts), key=lambda at: loss_and_slopes(at, y, distances)[0])
        self._precision = _response_kernel(distances, self._at, len(y))[1]
        self._weights, self._y = self._precision @ y, y

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise of one value."""
        return self._spread * math.sqrt(math.exp(self._at[-1]))

    def draw_responses(self, columns: list[FloatArray]) -> FloatArray:
        """Return draws of the response without noise at m points, (DRAWS, m). columns: their positions, numeric axes first."""
        mean, root = _predict_at(self._at, self._columns, self._numeric, self._precision, self._y, columns)
        normal = np.random.default_rng(SEED).standard_normal((NUMBER_OF_DRAWS, len(mean)))
        return np.asarray(self._centre + self._spread * (mean + normal @ root.T), dtype=np.float64)

    def draw_lowest_points(self, columns: list[FloatArray]) -> IntArray:
        """Return the index of the lowest of m points in each draw of the response, shape (DRAWS,)."""
        return np.asarray(self.draw_responses(columns).argmin(1), dtype=np.int64)

    def predict(self, columns: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of the response, without noise, at m points; columns: numeric axes first."""
        relevance, signal = np.exp(self._at[:-2]), math.exp(self._at[-2])
        pairs = enumerate(zip(relevance, self._columns, columns, strict=True))
        to_known = sum(r * _squared_distances(v, u, i < self._numeric) for i, (r, u, v) in pairs)
        cross = signal * np.exp(-0.5 * np.asarray(to_known))
        variance = signal - ((cross @ self._precision) * cross).sum(1)
        spread = np.sqrt(np.maximum(variance, _JITTER))
        return self._centre + self._spread * (cross @ self._weights), self._spread * spread


def _predict_at(
    at: FloatArray,
    columns: list[FloatArray],
    numeric: int,
    precision: FloatArray,
    y: FloatArray,
    new: list[FloatArray],
    trend: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """Return the mean, (m,), of the response at m new points, and a square root, (m, m), of its covariance. at: fitted
    parameters; columns, y: the known points and their standardised values, the first `numeric` columns being numbers; trend:
    variance of slopes."""
    relevance, signal = np.exp(at[:-2]), math.exp(at[-2])
    pairs = list(enumerate(zip(relevance, columns, new, strict=True)))
    to_known = sum(r * _squared_distances(v, u, i < numeric) for i, (r, u, v) in pairs)
    between_new = sum(r * _squared_distances(v, v, i < numeric) for i, (r, _, v) in pairs)
    old_numbers, numbers = columns[:numeric], new[:numeric]
    cross = signal * np.exp(-0.5 * np.asarray(to_known)) + trend * _linear_kernel(numbers, old_numbers)
    covariance = signal * np.exp(-0.5 * np.asarray(between_new)) + trend * _linear_kernel(numbers, numbers)
    covariance -= cross @ precision @ cross.T
    return cross @ precision @ y, _matrix_root(covariance)


def _linear_kernel(a: list[FloatArray], b: list[FloatArray]) -> FloatArray | float:
    """Return the scalar product of positions relative to the middle of each axis, where missing positions lie."""
    pairs = [(np.nan_to_num(u, nan=0.5) - 0.5, np.nan_to_num(v, nan=0.5) - 0.5) for u, v in zip(a, b, strict=True)]
    return sum((np.outer(u, v) for u, v in pairs), 0.0)


def _squared_distances(a: FloatArray, b: FloatArray, numeric: bool) -> FloatArray:
    """Return squared distances between the positions a and b on one axis, shape (len(a), len(b))."""
    one_missing = np.isfinite(a)[:, None] != np.isfinite(b)[None, :]
    if not numeric:
        both_known = np.isfinite(a)[:, None] & np.isfinite(b)[None, :]
        return np.where(one_missing | (both_known & (a[:, None] != b[None, :])), _SQUARED_CHOICE_DISTANCE, 0.0)
    # No point of the axis is equally far from all values, so a missing value is placed beside the middle of the axis.
    x, z = np.nan_to_num(a, nan=0.5), np.nan_to_num(b, nan=0.5)
    return np.asarray((x[:, None] - z[None, :]) ** 2 + np.where(one_missing, _SQUARED_CHOICE_DISTANCE, 0.0))


def _p_value_of_axis(y: FloatArray, distances: FloatArray, start: FloatArray, positions: FloatArray) -> float:
    """Return the probability that a shuffled axis raises the likelihood of a model without the axis equally."""
    at = fit_parameters(y, distances, start)
    similar, precision = _response_kernel(distances, at, len(y))
    weights = precision @ y
    likelihood_slopes = (np.outer(weights, weights) - precision) * similar
    centred = np.where(np.isfinite(positions), positions, 0.5) - 0.5
    rows = np.vstack([centred, np.random.default_rng(SEED).permuted(np.tile(centred, (NUMBER_OF_PERMUTATIONS, 1)), axis=1)])
    statistics = ((rows @ likelihood_slopes) * rows).sum(1) - rows**2 @ likelihood_slopes.sum(1)
    return float(np.mean(statistics >= statistics[0] - 1e-9 * abs(statistics[0])))


def _response_kernel(distances: FloatArray, at: FloatArray, n: int) -> tuple[FloatArray, FloatArray]:
    """Return (covariance of the response at n points, inverse covariance of the noisy values), both of shape (n, n)."""
    similar = _response_similarity(distances, at, n)
    return similar, root_and_inverse(similar, np.exp(at[-1]) + _JITTER)[1]


def _response_similarity(distances: FloatArray, at: FloatArray, n: int) -> FloatArray:
    signal = np.exp(at[-2])
    if not len(distances):
        return np.full((n, n), signal)
    return np.asarray(signal * np.exp(-0.5 * np.tensordot(np.exp(at[:-2]), distances, 1)), dtype=np.float64)


def _prior_moments(count: int) -> tuple[FloatArray, FloatArray]:
    mean = np.array([*[_PRIOR_MEAN[0]] * count, *_PRIOR_MEAN[1:]])
    return mean, np.array([*[_PRIOR_VARIANCE[0]] * count, *_PRIOR_VARIANCE[1:]])


def fit_parameters(y: FloatArray, distances: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Return the log relevances, log signal and log noise that maximise the penalised likelihood, (axes + 2,). y: (n,);
    distances: (axes, n, n), squared; start: by default equal relevances."""
    start = np.array([*np.zeros(len(distances)), 0.0, -2.0]) if start is None else start
    bounds = [(-7.0, 5.0)] * len(distances) + [(-3.0, 4.0), (-9.0, 1.0)]
    result = minimize(
        loss_and_slopes, start, args=(y, distances), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 60}
    )
    return np.asarray(result.x, dtype=np.float64)


def leave_one_out_residuals(y: FloatArray, distances: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Return the values minus their predictions from all other values, with parameters fitted once to all values."""
    precision = _response_kernel(distances, fit_parameters(y, distances, start), len(y))[1]
    return np.asarray(precision @ y / precision.diagonal(), dtype=np.float64)


def loss_and_slopes(at: FloatArray, y: FloatArray, distances: FloatArray) -> tuple[float, FloatArray]:
    """Return (negative logarithm of the penalised likelihood, its gradient)."""
    n, relevance, noise = len(y), np.exp(at[:-2]), np.exp(at[-1])
    similar = _response_similarity(distances, at, n)
    root, precision = root_and_inverse(similar, noise + _JITTER)
    weights = precision @ y
    likelihood_slopes = np.outer(weights, weights) - precision
    weighted = likelihood_slopes * similar
    slopes = 0.25 * relevance * (distances.reshape(len(relevance), n * n) @ weighted.ravel())
    gradient = np.array([*slopes, -0.5 * weighted.sum(), -0.5 * noise * np.trace(likelihood_slopes)])
    mean, variance = _prior_moments(len(relevance))
    loss = 0.5 * y @ weights + np.log(np.diag(root)).sum() + 0.5 * np.sum((at - mean) ** 2 / variance)
    return float(loss), gradient + (at - mean) / variance


def root_and_inverse(similarity: FloatArray, noise: float = 0.0) -> tuple[FloatArray, FloatArray]:
    """Return (lower root, inverse) of the covariance with the noise variance added, by LAPACK's routines for symmetric matrices
    in half the time of a general inversion. Raises LinAlgError if it is not positive definite."""
    noisy = similarity.copy()
    noisy[np.diag_indices(len(noisy))] += noise
    root, status = lapack.dpotrf(noisy, lower=1)
    if status:
        raise np.linalg.LinAlgError("the covariance is not positive definite")
    half = np.tril(lapack.dpotri(root, lower=1)[0])
    precision = half + half.T
    precision[np.diag_indices(len(noisy))] /= 2
    return root, precision


def _chances_of_ends(
    y: FloatArray, columns: list[FloatArray], distances: FloatArray, at: FloatArray, axis: int, edge: float
) -> tuple[float, float]:
    """Return the probabilities that the best value lies at the low and at the high end, averaged over the best points."""
    n, relevance, signal = len(y), np.exp(at[:-2]), math.exp(at[-2])
    precision = _response_kernel(distances, at, n)[1]
    along = relevance[axis] * _squared_distances(_GRID_POSITIONS, columns[axis], True)
    prior = signal * np.exp(-0.5 * relevance[axis] * _squared_distances(_GRID_POSITIONS, _GRID_POSITIONS, True))
    normal = np.random.default_rng(SEED).standard_normal((NUMBER_OF_DRAWS, len(_GRID_POSITIONS)))
    others = np.delete(np.arange(len(columns)), axis)
    low = high = 0.0
    best = range(max(3, n // 8))  # y is in ascending order
    for point in best:
        fixed = sum((relevance[k] * distances[k][point] for k in others), np.zeros(n))
        cross = signal * np.exp(-0.5 * (along + fixed[None, :]))
        covariance = prior - cross @ precision @ cross.T
        draws = cross @ precision @ y + normal @ _matrix_root(covariance).T
        best_positions = _GRID_POSITIONS[draws.argmin(1)]
        low += float(np.mean(best_positions <= edge)) / len(best)
        high += float(np.mean(best_positions >= 1 - edge)) / len(best)
    return low, high


def _matrix_root(covariance: FloatArray) -> FloatArray:
    """Return a square root of a covariance matrix, even if rounding made it slightly indefinite."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)), dtype=np.float64)
