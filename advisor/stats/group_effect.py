"""Estimates the difference between groups of settings, each at its best values of all other hyperparameters.

One Gaussian process is fitted to the costs of all groups. Each group's response is the sum of a common response, a constant and
its own deviation, so groups may have different optima. The common response and each deviation consist of an additive part, with
one function per hyperparameter, and a joint function of all hyperparameters; the fit estimates the share of each part. Sources:
Swersky, Snoek and Adams, "Multi-task Bayesian optimization"; Duvenaud, Nickisch and Rasmussen, "Additive Gaussian processes".
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
"""Number of drawn responses per draw of the parameters of the Gaussian process."""
_MAX_FITTED_SETTINGS = 128
"""Maximum number of settings to which the process is fitted; more if groups would keep fewer than `MIN_GROUP_SIZE` settings."""
_REPEAT_DRAWS = 20_000
MAX_DRAWN_POINTS = 240
"""Maximum number of points, over all groups, at which responses are drawn."""
_NUMBER_OF_CANDIDATES = 2400
_MIN_GOOD_SETTINGS = 4
"""Minimum number of good settings of a group; its best cost is searched near these settings."""
_GROUP_OFFSET_VARIANCE = 4.0
_JITTER = 1e-4
# Priors and bounds of the parameters of the Gaussian process, in the order that `_GroupProcess.mode` documents.
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

    def difference_to_leading_group(self, group: int, level: float) -> tuple[float, float, float]:
        """Return (estimate, low, high) for the best cost of the group minus the leading one's. level: its probability."""
        differences = self.best_costs[:, group] - self.best_costs[:, self.leading_group]
        low, middle, high = np.quantile(differences, [(1 - level) / 2, 0.5, (1 + level) / 2])
        return float(middle), float(low), float(high)


def compare_groups(groups: IntArray, numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray) -> GroupEffect:
    """Compare groups of settings by the best cost of each group.

    groups: index of each setting's group (0, 1, ...). numeric, choices: positions of the settings for each other hyperparameter,
    NaN if missing. costs: finite. All have shape (n,). Responses are fitted on an asinh scale, because a response with a cliff is
    not smooth in the original costs.
    """
    chosen = _choose_settings(groups, costs)
    groups, costs = groups[chosen], costs[chosen]
    blocks = _coordinate_blocks([u[chosen] for u in numeric], [u[chosen] for u in choices])
    scale = _AsinhScale(costs)
    model = _GroupProcess(blocks, groups, scale.to_scores(costs), scale.noise_factors(costs))
    best_costs = scale.to_costs(model.draw_lowest_responses(_candidate_points(blocks, groups, costs)))
    return GroupEffect(best_costs, float(scale.noise_sd(model.mode[-1])))


def compare_repeated_settings(groups: Sequence[FloatArray]) -> GroupEffect:
    """Compare groups, each of which consists of the repeats of one setting; at least one group has two repeats. All groups have the
    same variance, so draws of their means follow Student's t."""
    sd_and_freedom = difference.pooled_deviation(list(groups))
    assert sd_and_freedom is not None
    repeat_sd, freedom = sd_and_freedom
    rng = np.random.default_rng(SEED)
    drawn_sds = repeat_sd * np.sqrt(freedom / rng.chisquare(freedom, (_REPEAT_DRAWS, 1)))
    standardised_errors = rng.standard_normal((_REPEAT_DRAWS, len(groups))) / np.sqrt([len(g) for g in groups])
    return GroupEffect(np.array([g.mean() for g in groups]) + drawn_sds * standardised_errors, repeat_sd)


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
        """Return the noise variance of each score as a multiple of that at the best cost; the scale shrinks noise of high costs."""
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


def draw_further_results(numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray, count: int) -> FurtherResults:
    """Draw the results of `count` further random settings, but at most `MAX_DRAWN_POINTS`. numeric, choices: positions from 0 to
    1, shape (n,), NaN if missing. costs: shape (n,), NaN for failed trials, which count as the worst."""
    all_costs = np.where(np.isnan(costs), np.nanmax(costs), costs)
    chosen = np.sort(choose_evenly_by_rank(all_costs, _MAX_FITTED_SETTINGS))
    positions = [u[chosen] for u in numeric], [u[chosen] for u in choices]
    all_costs = all_costs[chosen]
    scale, group = _AsinhScale(all_costs), np.zeros(len(chosen), dtype=np.int64)
    model = _GroupProcess(_coordinate_blocks(*positions), group, scale.to_scores(all_costs), scale.noise_factors(all_costs))
    rng, noise_rng = np.random.default_rng(SEED), np.random.default_rng(SEED + 1)
    best = model.points[int(all_costs.argmin())]
    gains, noise, new_bests = [], [], []
    for hyper in model.draw_parameters(rng):
        points = np.vstack([best, _random_settings(*positions, min(count, MAX_DRAWN_POINTS), rng)])
        responses = model.draw(hyper, model.distances_of(points), np.zeros(len(points), dtype=np.int64), rng)
        drawn = scale.to_costs(responses)
        noise_sd = float(scale.noise_sd(hyper[-1]))
        gains.append(np.maximum(drawn[:, 0] - drawn[:, 1:].min(axis=1), 0.0))
        noise.append(np.repeat(noise_sd, len(drawn)))
        new_bests.append((drawn[:, 1:] + noise_sd * noise_rng.standard_normal(drawn[:, 1:].shape)).min(axis=1))
    return FurtherResults(np.concatenate(gains), np.concatenate(noise), np.concatenate(new_bests))


def _random_settings(numeric: list[FloatArray], choices: list[FloatArray], number: int, rng: np.random.Generator) -> FloatArray:
    """Return the coordinates of new random settings. Categorical and missing values are copied from old ones."""
    old = rng.integers(len((*numeric, *choices)[0]), size=number)
    drawn_positions = [np.where(np.isfinite(u[old]), rng.random(number), np.nan) for u in numeric]
    old_and_new_positions = [np.concatenate([u, v]) for u, v in zip(numeric, drawn_positions, strict=True)]
    return np.hstack(_coordinate_blocks(old_and_new_positions, [np.concatenate([u, u[old]]) for u in choices]))[-number:]


def _coordinate_blocks(numeric: list[FloatArray], choices: list[FloatArray]) -> list[FloatArray]:
    return [*(axis_coordinates(u, True) for u in numeric), *(axis_coordinates(u, False) for u in choices)]


def _choose_settings(groups: IntArray, costs: FloatArray) -> IntArray:
    share, subsets = min(1.0, _MAX_FITTED_SETTINGS / len(costs)), []
    for g in range(int(groups.max()) + 1):
        group_indices = np.flatnonzero(groups == g)
        number = max(MIN_GROUP_SIZE, round(share * len(group_indices)))
        subsets.append(group_indices[choose_evenly_by_rank(costs[group_indices], number)])
    return np.sort(np.concatenate(subsets))


def _candidate_points(blocks: list[FloatArray], groups: IntArray, costs: FloatArray) -> FloatArray:
    """Return the points, shape (m, coordinates), at which the lowest cost is searched: good settings, points on lines through two
    good settings, and points that mix the coordinates of two. Good settings alone need not have the best value of each
    hyperparameter."""
    rng = np.random.default_rng(SEED)
    points = np.hstack(blocks) if blocks else np.zeros((len(costs), 1))
    group_count = int(groups.max()) + 1
    good_indices = []
    for g in range(group_count):
        group_indices = np.flatnonzero(groups == g)
        best_first = group_indices[np.argsort(costs[group_indices], kind="stable")]
        good_indices.append(best_first[: max(_MIN_GOOD_SETTINGS, len(group_indices) // 3)])
    index_pairs = np.array([rng.choice(good_indices[k % group_count], 2) for k in range(_NUMBER_OF_CANDIDATES)])
    first_share = rng.uniform(-0.5, 1.5, (_NUMBER_OF_CANDIDATES, points.shape[1]))
    first_share[::2] = first_share[::2, :1]
    mixed_points = first_share * points[index_pairs[:, 0]] + (1 - first_share) * points[index_pairs[:, 1]]
    candidates = np.clip(np.vstack([points[np.concatenate(good_indices)], mixed_points]), points.min(0), points.max(0))
    return np.asarray(candidates, dtype=np.float64)


class _GroupProcess:
    """A Gaussian process that is fitted to the scores of all settings.

    `mode` holds the fitted parameters: log relevances, the logit of the additive share, and the logarithms of three variances: of
    the common response, of the deviations of groups, and of the noise.
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
        relevance, (shared, own, noise) = np.exp(at[:-4]), np.exp(at[-3:])
        single, single_slopes = _matern_kernel(relevance[:, None, None] * self.distances)
        joint, joint_slope = _matern_kernel(np.tensordot(relevance, self.distances, 1))
        additive = float(expit(at[-4]))
        similarity = additive * single.mean(0) + (1 - additive) * joint
        parts = shared * similarity, own * similarity * self.same
        diagonal = np.diag(noise * self.noise_factors + _JITTER)
        covariance = parts[0] + parts[1] + _GROUP_OFFSET_VARIANCE * self.same + diagonal
        root = np.linalg.cholesky(covariance)
        precision = np.linalg.inv(covariance)
        weights = precision @ self.y
        likelihood_slopes = np.outer(weights, weights) - precision
        covariance_weights = likelihood_slopes * (shared + own * self.same)
        mixed_slopes = additive * single_slopes / len(relevance) + (1 - additive) * joint_slope
        kernel_slopes = relevance[:, None, None] * self.distances * mixed_slopes
        gradient = [-0.5 * np.sum(covariance_weights * s) for s in kernel_slopes]
        gradient += [-0.5 * additive * (1 - additive) * np.sum(covariance_weights * (single.mean(0) - joint))]
        gradient += [-0.5 * np.sum(likelihood_slopes * part) for part in parts]
        gradient += [-0.5 * noise * (likelihood_slopes.diagonal() @ self.noise_factors)]
        deviation = at - self.means
        loss = 0.5 * self.y @ weights + np.log(np.diag(root)).sum() + 0.5 * np.sum(deviation**2 / self.variances)
        return float(loss), np.array(gradient) + deviation / self.variances

    def _fit_parameters(self) -> FloatArray:
        """Return the better of two local optima, because a fit from a bad starting point may take the response for noise."""
        local_optima = []
        for noise in (-5.0, -1.0):
            start, options = np.array([*np.zeros(len(self.distances) + 2), -4.0, noise]), {"maxiter": 80}
            optimum = minimize(self._penalised_loss, start, jac=True, method="L-BFGS-B", bounds=self.bounds, options=options)
            local_optima.append((float(optimum.fun), optimum.x))
        return np.asarray(min(local_optima, key=lambda f: f[0])[1], dtype=np.float64)

    def draw_lowest_responses(self, places: FloatArray) -> FloatArray:
        """Return draws of the lowest response of each group over the most promising of `places`, shape (draws, groups)."""
        rng = np.random.default_rng(SEED)
        group_count = int(self.groups.max()) + 1
        similarity = _response_correlation(self.mode, self._distances(self.points, places))
        number = MAX_DRAWN_POINTS // group_count
        promising = [places[self._order_by_promise(similarity, g)[:number]] for g in range(group_count)]
        distances = self.distances_of(np.vstack(promising))
        groups = np.repeat(np.arange(group_count), [len(c) for c in promising])
        lowest_responses = []
        for hyper in self.draw_parameters(rng):
            drawn_responses = self.draw(hyper, distances, groups, rng)
            lowest_responses.append(np.stack([drawn_responses[:, groups == g].min(1) for g in range(group_count)], axis=1))
        return np.vstack(lowest_responses)

    def draw_parameters(self, rng: np.random.Generator) -> FloatArray:
        """Return draws of the parameters, shape (draws, parameters), from a normal approximation of their posterior."""
        precisions, directions = np.linalg.eigh(curvature(lambda at: self._penalised_loss(at)[1], self.mode))
        precisions = np.maximum(precisions, 1 / self.variances.max())
        normal_steps = rng.standard_normal((_PARAMETER_DRAWS, len(self.mode))) / np.sqrt(precisions)
        return np.asarray(np.clip(self.mode + normal_steps @ directions.T, *self.bounds.T), dtype=np.float64)

    def _order_by_promise(self, similarity: FloatArray, group: int) -> IntArray:
        """Return the indices of the points by mean minus standard deviation of the group's response, lowest first."""
        mean, half = self._posterior_mean(self.mode, similarity, (self.groups == group)[:, None])
        shared, own = np.exp(self.mode[-3:-1])
        posterior_sd = np.sqrt(np.maximum(shared + own + _GROUP_OFFSET_VARIANCE - (half**2).sum(0), 0))
        return np.argsort(mean - posterior_sd, kind="stable")

    def distances_of(self, places: FloatArray) -> list[FloatArray]:
        """Return squared distances along each axis: (axes, n, m) between settings and points, (axes, m, m) between points."""
        return [self._distances(self.points, places), self._distances(places, places)]

    def _distances(self, a: FloatArray, b: FloatArray) -> FloatArray:
        columns_of_axes = [self.axis_of == axis for axis in range(len(self.distances))]
        return np.array([squared_distances(a[:, c], b[:, c]) for c in columns_of_axes])

    def draw(self, fitted: FloatArray, distances: list[FloatArray], groups: IntArray, rng: np.random.Generator) -> FloatArray:
        """Return draws of the responses of `groups` at points with the given distances, shape (draws, places)."""
        similarity = _response_correlation(fitted, distances[0])
        mean, half = self._posterior_mean(fitted, similarity, self.groups[:, None] == groups)
        prior = _prior_covariance(fitted, _response_correlation(fitted, distances[1]), groups[:, None] == groups)
        jitter = 1e-5 * (np.exp(fitted[-3:-1]).sum() + _GROUP_OFFSET_VARIANCE) * np.eye(len(groups))
        root = np.linalg.cholesky(prior - half.T @ half + jitter)
        return np.asarray(mean + rng.standard_normal((_RESPONSE_DRAWS, len(groups))) @ root.T, dtype=np.float64)

    def _posterior_mean(self, parameters: FloatArray, similarity: FloatArray, same: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return (posterior mean at m points, R, shape (n, m)); the data reduce the covariance of the points by R^T R."""
        covariance = _prior_covariance(parameters, _response_correlation(parameters, self.distances), self.same)
        root = np.linalg.cholesky(covariance + np.diag(np.exp(parameters[-1]) * self.noise_factors + _JITTER))
        reduction = np.linalg.solve(root, _prior_covariance(parameters, similarity, same))
        return np.asarray(np.linalg.solve(root, self.y) @ reduction), reduction


def _prior_covariance(parameters: FloatArray, similarity: FloatArray, same_group: BoolArray) -> FloatArray:
    shared, own = np.exp(parameters[-3:-1])
    return np.asarray((shared + own * same_group) * similarity + _GROUP_OFFSET_VARIANCE * same_group)


def _response_correlation(parameters: FloatArray, distances: FloatArray) -> FloatArray:
    """Return the correlation (n, m) between responses of one group at points with squared distances (axes, n, m)."""
    scaled, additive = (np.exp(parameters[: len(distances), None, None]) * distances, float(expit(parameters[-4])))
    single = np.mean([_matern_kernel(d)[0] for d in scaled], axis=0)
    return np.asarray(additive * single + (1 - additive) * _matern_kernel(np.sum(scaled, axis=0))[0])


def _matern_kernel(squared: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the Matérn correlation of order 5/2 at squared distances, and its derivative. A squared exponential kernel would
    understate the uncertainty near a sharp optimum or a cliff."""
    distance = np.sqrt(5 * squared)
    exponential_decay = np.exp(-distance)
    return (1 + distance + distance**2 / 3) * exponential_decay, -5 / 6 * (1 + distance) * exponential_decay
