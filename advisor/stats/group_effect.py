"""Estimates the difference between groups of settings, each at its best values of all other hyperparameters.

One Gaussian process is fitted to the costs of all groups. Each group's response is the sum of a common response, a constant and
a deviation of its own, so optima may differ. The common response and each deviation are sums of one function per hyperparameter
(additive) and one of all (joint); the fit estimates both shares. Sources: Swersky, Snoek and Adams, "Multi-task Bayesian
optimization"; Duvenaud, Nickisch and Rasmussen, "Additive Gaussian processes".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.stats import difference
from advisor.stats.importance import axis_coordinates, curvature, squared_distances
from advisor.stats.ranks import choose_evenly_by_rank

SEED = 0
MIN_GROUP_SIZE = 4
"""Minimum number of settings with a result in each compared group."""
_PARAMETER_DRAWS = 20
"""Number of posterior draws of relevances (inverse squared length scales) and variances."""
_RESPONSE_DRAWS = 40
"""Number of responses per draw of the process's parameters."""
_MAX_FITTED_SETTINGS = 128
"""Maximum number of settings to fit, unless a group would keep fewer than `MIN_GROUP_SIZE`."""
_REPEAT_DRAWS = 20_000
MAX_DRAWN_POINTS = 240
"""Maximum number of points, over all groups, at which responses are drawn."""
_NUMBER_OF_CANDIDATES = 2400
"""Number of random points near good settings. The most promising of them are chosen for each group."""
_MIN_GOOD_SETTINGS = 4
"""Minimum number of settings of a group near which its best cost is searched."""
_GROUP_OFFSET_VARIANCE = 4.0
"""Prior variance of the constant offset of a group, in variances of the costs."""
_JITTER = 1e-4
# Priors and bounds of the parameters of the Gaussian process, in the order that `_Model.mode` documents.
_PRIOR_MEANS = (0.0, 0.0, 0.0, -1.0, -4.0)
_PRIOR_VARIANCES = (4.0, 4.0, 2.25, 2.0, 4.0)
_PARAMETER_BOUNDS = ((-7.0, 5.0), (-5.0, 5.0), (-3.0, 5.0), (-12.0, 3.0), (-11.0, 1.0))


@dataclass(frozen=True)
class GroupEffect:
    """Posterior draws of the best cost of each group of settings."""

    best_costs: FloatArray
    """Best cost of each group, shape (draws, groups)."""
    noise_sd: float
    """Standard deviation of the noise of results near the best settings."""

    @property
    def leading_group(self) -> int:
        """Index of the group whose expected best cost is lowest."""
        return int(self.best_costs.mean(0).argmin())

    def gap_to_leader(self, group: int, level: float) -> tuple[float, float, float]:
        """Return (estimate, low, high) of the group's best cost minus the leading group's; level: probability of the interval."""
        gaps = self.best_costs[:, group] - self.best_costs[:, self.leading_group]
        low, middle, high = np.quantile(gaps, [(1 - level) / 2, 0.5, (1 + level) / 2])
        return float(middle), float(low), float(high)


def compare_groups(groups: IntArray, numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> GroupEffect:
    """Compare groups of settings by the best cost of each group.

    groups: (n,) indices 0, 1, ...; numeric, choices: positions (n,) of the other hyperparameters, NaN if missing; costs: (n,),
    finite. Responses are fitted on an asinh scale, because a response with a cliff is not smooth in the original costs.
    """
    subset = _choose_settings(groups, costs)
    groups, costs = groups[subset], costs[subset]
    blocks = _coordinate_blocks([u[subset] for u in numeric], [u[subset] for u in choices])
    scale = _AsinhScale(costs)
    model = _Model(blocks, groups, scale.to_scores(costs), scale.noise_factors(costs))
    best = scale.to_costs(model.draw_lowest_responses(_candidate_points(blocks, groups, costs)))
    return GroupEffect(best, float(scale.noise_sd(model.mode[-1])))


def compare_repeated_settings(groups: Sequence[FloatArray]) -> GroupEffect:
    """Compare groups that are each the repeats of one setting, at least one with two repeats. All have the same variance, so
    draws of their means follow Student's t."""
    variance = difference.pooled_deviation(list(groups))
    assert variance is not None
    deviation, freedom = variance
    rng = np.random.default_rng(SEED)
    deviations = deviation * np.sqrt(freedom / rng.chisquare(freedom, (_REPEAT_DRAWS, 1)))
    errors = rng.standard_normal((_REPEAT_DRAWS, len(groups))) / np.sqrt([len(g) for g in groups])
    return GroupEffect(np.array([g.mean() for g in groups]) + deviations * errors, deviation)


class _AsinhScale:
    """A scale for costs that is linear near the best cost and logarithmic far above it; scores have mean 0 and variance 1."""

    def __init__(self, costs: FloatArray) -> None:
        self.zero, self.unit = float(costs.min()), max(float(np.median(costs) - costs.min()), 1e-12)
        y = np.arcsinh((costs - self.zero) / self.unit)
        self.centre, self.spread = float(y.mean()), float(y.std()) or 1.0

    def to_scores(self, costs: FloatArray) -> FloatArray:
        return np.asarray((np.arcsinh((costs - self.zero) / self.unit) - self.centre) / self.spread, dtype=np.float64)

    def to_costs(self, scores: FloatArray) -> FloatArray:
        return np.asarray(self.zero + self.unit * np.sinh(np.clip(self.centre + self.spread * scores, -20, 20)))

    def noise_factors(self, costs: FloatArray) -> FloatArray:
        """Return the noise variance of each score relative to that at the best cost; the scale shrinks the noise of high costs."""
        return np.asarray(1 / (1 + ((costs - self.zero) / self.unit) ** 2), dtype=np.float64)

    def noise_sd(self, log_variance: FloatArray) -> FloatArray:
        """Return the standard deviation of the noise near the best cost, in costs. log_variance: log noise variance of scores."""
        return np.asarray(np.exp(log_variance / 2) * self.spread * self.unit, dtype=np.float64)


@dataclass(frozen=True)
class FurtherResults:
    """Posterior draws of the results of further random settings; each array has shape (draws,)."""

    gains: FloatArray
    """Noise-free cost of the best tried setting minus the lowest noise-free cost of new settings; at least 0."""
    noise_sd: FloatArray
    """Standard deviation of the noise of one trial's result."""
    best_results: FloatArray
    """Lowest cost of the new settings, including noise."""


def draw_further_results(
    numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray, number: int
) -> FurtherResults:
    """Draw the results of `number` further random settings, but at most `MAX_DRAWN_POINTS`. numeric, choices: positions (n,) in
    0..1, NaN if missing; costs: (n,), NaN for failed trials, which count as the worst."""
    bounded = np.where(np.isnan(costs), np.nanmax(costs), costs)
    subset = np.sort(choose_evenly_by_rank(bounded, _MAX_FITTED_SETTINGS))
    columns = [u[subset] for u in numeric], [u[subset] for u in choices]
    scale, bounded = _AsinhScale(bounded[subset]), bounded[subset]
    blocks = _coordinate_blocks(*columns)
    groups = np.zeros(len(subset), dtype=np.int64)
    model = _Model(blocks, groups, scale.to_scores(bounded), scale.noise_factors(bounded))
    rng, noise_rng, best = (np.random.default_rng(SEED), np.random.default_rng(SEED + 1), model.points[int(bounded.argmin())])
    gains, noise, new_bests = [], [], []
    for hyper in model.draw_parameters(rng):
        places = np.vstack([best, _random_settings(*columns, min(number, MAX_DRAWN_POINTS), rng)])
        drawn_costs = scale.to_costs(model.draw(hyper, model.distances_of(places), np.zeros(len(places), dtype=np.int64), rng))
        deviation = float(scale.noise_sd(hyper[-1]))
        gains.append(np.maximum(drawn_costs[:, 0] - drawn_costs[:, 1:].min(axis=1), 0.0))
        noise.append(np.repeat(deviation, len(drawn_costs)))
        new_bests.append((drawn_costs[:, 1:] + deviation * noise_rng.standard_normal(drawn_costs[:, 1:].shape)).min(axis=1))
    return FurtherResults(np.concatenate(gains), np.concatenate(noise), np.concatenate(new_bests))


def _random_settings(numeric: list[FloatArray], choices: list[FloatArray], number: int, rng: np.random.Generator) -> FloatArray:
    """Return coordinates of new random settings: uniform numeric values; categorical and missing values are copied."""
    old = rng.integers(len((*numeric, *choices)[0]), size=number)
    drawn_positions = [np.where(np.isfinite(u[old]), rng.random(number), np.nan) for u in numeric]
    whole = [np.concatenate([u, v]) for u, v in zip(numeric, drawn_positions, strict=True)]
    return np.hstack(_coordinate_blocks(whole, [np.concatenate([u, u[old]]) for u in choices]))[-number:]


def _coordinate_blocks(numeric: list[FloatArray], choices: list[FloatArray]) -> list[FloatArray]:
    return [*(axis_coordinates(u, True) for u in numeric), *(axis_coordinates(u, False) for u in choices)]


def _choose_settings(groups: IntArray, costs: FloatArray) -> IntArray:
    """Return the sorted indices of the settings to fit, evenly spaced in rank within each group."""
    share, subsets = min(1.0, _MAX_FITTED_SETTINGS / len(costs)), []
    for g in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == g)
        subsets.append(members[choose_evenly_by_rank(costs[members], max(MIN_GROUP_SIZE, round(share * len(members))))])
    return np.sort(np.concatenate(subsets))


def _candidate_points(blocks: list[FloatArray], groups: IntArray, costs: FloatArray) -> FloatArray:
    """Return the points, shape (m, coordinates), where the lowest cost is searched: good settings, points on lines through two
    of them, and points that mix the coordinates of two, because no tried setting need have the best values of all
    hyperparameters."""
    rng = np.random.default_rng(SEED)
    points = np.hstack(blocks) if blocks else np.zeros((len(costs), 1))
    count = int(groups.max()) + 1
    good = []
    for g in range(count):
        members = np.flatnonzero(groups == g)
        good.append(members[np.argsort(costs[members], kind="stable")][: max(_MIN_GOOD_SETTINGS, len(members) // 3)])
    pairs = np.array([rng.choice(good[k % count], 2) for k in range(_NUMBER_OF_CANDIDATES)])
    share = rng.uniform(-0.5, 1.5, (_NUMBER_OF_CANDIDATES, points.shape[1]))
    share[::2] = share[::2, :1]
    between = share * points[pairs[:, 0]] + (1 - share) * points[pairs[:, 1]]
    inside = np.clip(np.vstack([points[np.concatenate(good)], between]), points.min(0), points.max(0))
    return np.asarray(inside, dtype=np.float64)


class _Model:
    """A Gaussian process that is fitted to the scores of all settings.

    `mode` holds its fitted parameters: log relevances, logit of the additive share, and the logarithms of the common variance,
    of the variance of group deviations, and of the noise variance.
    """

    def __init__(self, blocks: list[FloatArray], groups: IntArray, y: FloatArray, noise_factors: FloatArray) -> None:
        self.noise_factors = noise_factors
        self.points = np.hstack(blocks) if blocks else np.zeros((len(y), 1))
        self.axis_of = np.repeat(np.arange(len(blocks)), [b.shape[1] for b in blocks]) if blocks else np.array([0])
        self.groups, self.y = groups, y
        self.same: BoolArray = groups[:, None] == groups[None, :]
        self.distances = np.array([squared_distances(b, b) for b in blocks]) if blocks else np.zeros((1, len(y), len(y)))
        axes = len(self.distances)
        repeat = np.array([axes, 1, 1, 1, 1])
        self.means, self.variances = np.repeat(_PRIOR_MEANS, repeat), np.repeat(_PRIOR_VARIANCES, repeat)
        self.bounds = np.repeat(np.array(_PARAMETER_BOUNDS), repeat, axis=0)
        self.mode = self._fit_parameters()

    def _penalised_loss(self, at: FloatArray) -> tuple[float, FloatArray]:
        """Return the negative logarithm of the penalised likelihood, and its gradient."""
        relevance, (shared, own, noise) = np.exp(at[:-4]), np.exp(at[-3:])
        single, single_slopes = _matern_kernel(relevance[:, None, None] * self.distances)
        joint, joint_slope = _matern_kernel(np.tensordot(relevance, self.distances, 1))
        additive = float(expit(at[-4]))
        similar = additive * single.mean(0) + (1 - additive) * joint
        parts = shared * similar, own * similar * self.same
        covariance = parts[0] + parts[1] + _GROUP_OFFSET_VARIANCE * self.same + np.diag(noise * self.noise_factors + _JITTER)
        root = np.linalg.cholesky(covariance)
        precision = np.linalg.inv(covariance)
        weights = precision @ self.y
        likelihood_slopes = np.outer(weights, weights) - precision
        both = likelihood_slopes * (shared + own * self.same)
        slope = (
            relevance[:, None, None]
            * self.distances
            * (additive * single_slopes / len(relevance) + (1 - additive) * joint_slope)
        )
        slopes = [-0.5 * np.sum(both * s) for s in slope]
        slopes += [-0.5 * additive * (1 - additive) * np.sum(both * (single.mean(0) - joint))]
        slopes += [-0.5 * np.sum(likelihood_slopes * part) for part in parts] + [
            -0.5 * noise * (likelihood_slopes.diagonal() @ self.noise_factors)
        ]
        deviation = at - self.means
        loss = 0.5 * self.y @ weights + np.log(np.diag(root)).sum() + 0.5 * np.sum(deviation**2 / self.variances)
        return float(loss), np.array(slopes) + deviation / self.variances

    def _fit_parameters(self) -> FloatArray:
        """Return the better of two local optima: from a bad starting point, the fit takes the response for noise."""
        optima = []
        for noise in (-5.0, -1.0):
            start = np.array([*np.zeros(len(self.distances) + 2), -4.0, noise])
            result = minimize(
                self._penalised_loss, start, jac=True, method="L-BFGS-B", bounds=self.bounds, options={"maxiter": 80}
            )
            optima.append((float(result.fun), result.x))
        return np.asarray(min(optima, key=lambda f: f[0])[1], dtype=np.float64)

    def draw_lowest_responses(self, places: FloatArray) -> FloatArray:
        """Return draws of the lowest response of each group over its most promising points, shape (draws, groups)."""
        rng = np.random.default_rng(SEED)
        count = int(self.groups.max()) + 1
        similar = _response_correlation(self.mode, self._distances(self.points, places))
        best_places = [places[self._order_by_promise(similar, g)[: MAX_DRAWN_POINTS // count]] for g in range(count)]
        distances, groups = (
            self.distances_of(np.vstack(best_places)),
            np.repeat(np.arange(count), [len(c) for c in best_places]),
        )
        minima = []
        for hyper in self.draw_parameters(rng):
            drawn_results = self.draw(hyper, distances, groups, rng)
            minima.append(np.stack([drawn_results[:, groups == g].min(1) for g in range(count)], axis=1))
        return np.vstack(minima)

    def draw_parameters(self, rng: np.random.Generator) -> FloatArray:
        """Return draws, shape (draws, parameters), from a normal approximation of the posterior."""
        spread, directions = np.linalg.eigh(curvature(lambda at: self._penalised_loss(at)[1], self.mode))
        spread = np.maximum(spread, 1 / self.variances.max())
        steps = rng.standard_normal((_PARAMETER_DRAWS, len(self.mode))) / np.sqrt(spread)
        return np.asarray(np.clip(self.mode + steps @ directions.T, *self.bounds.T), dtype=np.float64)

    def _order_by_promise(self, similarity: FloatArray, group: int) -> IntArray:
        """Return the indices of the points by the mean minus the standard deviation of the group's response, lowest first."""
        mean, half = self._posterior_mean_and_reduction(self.mode, similarity, (self.groups == group)[:, None])
        shared, own = np.exp(self.mode[-3:-1])
        deviation = np.sqrt(np.maximum(shared + own + _GROUP_OFFSET_VARIANCE - (half**2).sum(0), 0))
        return np.argsort(mean - deviation, kind="stable")

    def distances_of(self, places: FloatArray) -> list[FloatArray]:
        """Return squared distances along each axis: (axes, n, m) between settings and points, (axes, m, m) between points."""
        return [self._distances(self.points, places), self._distances(places, places)]

    def _distances(self, a: FloatArray, b: FloatArray) -> FloatArray:
        columns = [self.axis_of == axis for axis in range(len(self.distances))]
        return np.array([squared_distances(a[:, c], b[:, c]) for c in columns])

    def draw(
        self, model_parameters: FloatArray, distances: list[FloatArray], groups: IntArray, rng: np.random.Generator
    ) -> FloatArray:
        """Return draws of the responses of `groups` at points with the given distances, shape (draws, places)."""
        mean, half = self._posterior_mean_and_reduction(
            model_parameters, _response_correlation(model_parameters, distances[0]), self.groups[:, None] == groups
        )
        remaining = (
            _prior_covariance(
                model_parameters, _response_correlation(model_parameters, distances[1]), groups[:, None] == groups
            )
            - half.T @ half
        )
        shared, own = np.exp(model_parameters[-3:-1])
        root = np.linalg.cholesky(remaining + 1e-5 * (shared + own + _GROUP_OFFSET_VARIANCE) * np.eye(len(groups)))
        return np.asarray(mean + rng.standard_normal((_RESPONSE_DRAWS, len(groups))) @ root.T, dtype=np.float64)

    def _posterior_mean_and_reduction(
        self, model_parameters: FloatArray, similarity: FloatArray, same_group: BoolArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the posterior mean at m points, and R (n, m): the data reduce the points' covariance by R^T R."""
        trial_covariance = _prior_covariance(
            model_parameters, _response_correlation(model_parameters, self.distances), self.same
        )
        root = np.linalg.cholesky(trial_covariance + np.diag(np.exp(model_parameters[-1]) * self.noise_factors + _JITTER))
        half = np.linalg.solve(root, _prior_covariance(model_parameters, similarity, same_group))
        return np.asarray(np.linalg.solve(root, self.y) @ half), half


def _prior_covariance(model_parameters: FloatArray, similarity: FloatArray, same_group: BoolArray) -> FloatArray:
    shared, own = np.exp(model_parameters[-3:-1])
    return np.asarray((shared + own * same_group) * similarity + _GROUP_OFFSET_VARIANCE * same_group)


def _response_correlation(model_parameters: FloatArray, distances: FloatArray) -> FloatArray:
    """Return the correlation (n, m) between responses of one group at points with squared distances (axes, n, m)."""
    scaled, additive = (np.exp(model_parameters[: len(distances), None, None]) * distances, float(expit(model_parameters[-4])))
    single = np.mean([_matern_kernel(d)[0] for d in scaled], axis=0)
    return np.asarray(additive * single + (1 - additive) * _matern_kernel(np.sum(scaled, axis=0))[0])


def _matern_kernel(squared: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the Matérn correlation of order 5/2 at squared distances, and its derivative. A squared exponential kernel would
    understate the uncertainty near a sharp optimum or a cliff."""
    distance = np.sqrt(5 * squared)
    decay = np.exp(-distance)
    return (1 + distance + distance**2 / 3) * decay, -5 / 6 * (1 + distance) * decay
