"""Tests whether good trials cluster at an end of a hyperparameter's range, and where in the range the response is best."""

from __future__ import annotations

import math
from itertools import permutations
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray, IntArray, RangeSide
from advisor.stats import surface
from advisor.stats.ranks import log_rank_scores

SEED = 0
NUMBER_OF_DRAWS = 2000
SURFACE_TEST_LEVEL_SHARE = 0.25
"""Share of the significance level for the test of the response surface, which shows effects that single axes do not show."""
TURN_PROBABILITY = 0.5
"""Probability with which an extended range includes the turning point of the response. One half suffices: the next round can
extend the range again, and a wider range is sampled less densely."""
MAX_CLUSTER_P_VALUE = 0.2
"""Significance level of a cluster among the successful trials alone. Without this second test, failures at one end would make
successful trials seem to cluster at the other end."""
OPTIMUM_INTERVAL_PROBABILITY = 0.9
POLYNOMIAL_DEGREE = 3
_PRIOR_VARIANCE_DECAY = 0.25
"""Factor on the prior variance from one polynomial degree to the next, because smooth responses are more likely."""
_GRID_POSITIONS = np.linspace(0, 1, 41)


def truncate_at_median(costs: FloatArray) -> FloatArray:
    """Return the costs, truncated at their median and centred, so that only differences within the better half remain. NaN
    counts as the worst cost. All results are zero if the costs are so large that their subtraction overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        truncated_costs = np.minimum(np.where(np.isnan(costs), np.nanmax(costs), costs), np.nanmedian(costs))
        centred_costs = truncated_costs - truncated_costs.mean()
    return centred_costs if np.isfinite(centred_costs).all() and np.isfinite(centred_costs.std()) else np.zeros(len(costs))


def p_values_of_clusters(positions: FloatArray, values: FloatArray) -> FloatArray:
    """Return p-values, shape (d, 2), of clusters of low values at the low and the high end of d axes, adjusted for tests of 2 * d
    ends.

    positions: shape (n, d), NaN if a point has no value on an axis. values: shape (n,). The statistic is the correlation between
    values and ranks of positions. Its null distribution is the maximum over the axes under permutations of the values (Westfall
    and Young); for n <= 7, all permutations are used. An axis on which all positions are equal has p = 1.
    """
    n, is_known = len(values), np.isfinite(positions)
    position_ranks = stats.rankdata(np.where(is_known, positions, np.nan), axis=0, nan_policy="omit")
    position_ranks = np.nan_to_num(position_ranks - (is_known.sum(0) + 1) / 2)
    rank_norms = np.sqrt((position_ranks**2).sum(0))
    position_ranks /= np.where(rank_norms > 0, rank_norms, 1.0)
    centred_values = values - values.mean()
    value_norm = np.sqrt((centred_values**2).sum())
    if n < 2 or value_norm == 0 or not position_ranks.any():
        return np.ones((positions.shape[1], 2))
    centred_values = centred_values / value_norm
    observed = centred_values @ position_ranks
    if n <= 7:
        permuted = centred_values[np.array(list(permutations(range(n))))]
    else:
        permutation_count = 4999 if n <= 200 else 1999
        shuffled = np.random.default_rng(SEED).permuted(np.tile(centred_values, (permutation_count, 1)), axis=1)
        permuted = np.vstack([centred_values, shuffled])
    largest = np.abs(permuted @ position_ranks).max(1)
    p_values = [(np.mean(largest >= s * observed[:, None] - 1e-9, axis=1)) for s in (1, -1)]
    return np.stack(p_values, axis=1)


class ClusterAtEnd(NamedTuple):
    """An end of an axis at which good trials cluster, and at which the fitted response is best."""

    axis: int
    side: RangeSide
    probability: float
    """Probability that the best position on the axis lies at this end."""
    p_value: float
    """Probability that an equally strong cluster appears by chance at any end of any axis."""
    p_value_among_successful_trials: float = 0.0
    """p-value of the cluster among the successful trials alone; 0 if no trial failed."""


def ends_with_clusters(
    numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray, edge: float, certainty: float, level: float
) -> list[ClusterAtEnd]:
    """Return the ends of axes at which good trials cluster, most significant first. costs: (n,), NaN for failed trials.

    numeric, choices: positions on each axis, from 0 to 1, shape (n,). At a returned end, the p-value is at most `level`, and the
    best position lies within `edge` of the end with probability `certainty` or more. `p_values_of_clusters` and `fit_responses`
    test each axis alone. With several axes, a test of the response surface at a quarter of the level also detects effects that
    depend on a second axis.
    """
    values, has_several_axes = log_rank_scores(costs), len(numeric) + len(choices) > 1
    p = p_values_of_clusters(np.stack(numeric, axis=1), values) / (1 - SURFACE_TEST_LEVEL_SHARE if has_several_axes else 1)
    clusters = {}
    if p.min() <= level:
        for axis, response in enumerate(fit_responses(numeric, choices, values, edge)):
            if response.chance_of_low_end >= certainty and p[axis, 0] <= level:
                clusters[axis] = ClusterAtEnd(axis, "low", response.chance_of_low_end, float(p[axis, 0]))
            if response.chance_of_high_end >= certainty and p[axis, 1] <= level:
                clusters[axis] = ClusterAtEnd(axis, "high", response.chance_of_high_end, float(p[axis, 1]))
    # With too many axes, even the smallest p-value that a permutation test can reach would exceed the level.
    if has_several_axes and len(numeric) / SURFACE_TEST_LEVEL_SHARE / (surface.NUMBER_OF_PERMUTATIONS + 1) <= level:
        for end in surface.find_ends_with_optimum(numeric, choices, values, edge, certainty):
            p_value = end.p_value * len(numeric) / SURFACE_TEST_LEVEL_SHARE
            if p_value <= level and end.axis not in clusters:
                clusters[end.axis] = ClusterAtEnd(end.axis, end.side, end.probability, p_value)
    supported = []
    for cluster in clusters.values():
        known = np.isfinite(costs) & np.isfinite(numeric[cluster.axis])
        p_successful = 0.0
        if not np.isfinite(costs).all() and known.sum() >= 3:
            p_of_ends = p_values_of_clusters(numeric[cluster.axis][known][:, None], log_rank_scores(costs[known]))
            p_successful = float(p_of_ends[0, 0 if cluster.side == "low" else 1])
        if p_successful <= MAX_CLUSTER_P_VALUE:
            supported.append(cluster._replace(p_value_among_successful_trials=p_successful))
    return sorted(supported, key=lambda c: (c.p_value, -c.probability, c.axis))


class AxisResponse(NamedTuple):
    """The position of the best value along one axis, from posterior draws of the response."""

    chance_of_low_end: float
    """Probability that the best position lies at the low end."""
    chance_of_high_end: float
    low_turn_distance: float
    """Distance from the low end to the turning point of the response, in range widths: the `TURN_PROBABILITY` quantile over draws,
    which parabolas extrapolate beyond the range; inf if too few draws turn."""
    high_turn_distance: float
    optimum: tuple[float, float] = (0.0, 1.0)
    """Central interval with the best position, of probability `OPTIMUM_INTERVAL_PROBABILITY`."""


def fit_responses(numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray, edge: float) -> list[AxisResponse]:
    """Return the response of `values`, shape (n,), along each numeric axis, adjusted for all other axes. Positions lie between 0
    and 1.

    The model is a sum of a cubic polynomial for each numeric axis and an effect for each choice. Prior variances and noise
    maximise the evidence (MacKay), so effects of irrelevant axes shrink to zero. edge: width of each end, as a share of the range.
    """
    distinct = [np.unique(p[np.isfinite(p)]) for p in (*numeric, *choices)]
    blocks = [_legendre_basis(p, min(POLYNOMIAL_DEGREE, len(x) - 1)) for p, x in zip(numeric, distinct, strict=False)]
    blocks += [(p[:, None] == x).astype(np.float64) for p, x in zip(choices, distinct[len(numeric) :], strict=True)]
    groups = np.repeat(np.arange(len(blocks)), [b.shape[1] for b in blocks])
    factors = [_PRIOR_VARIANCE_DECAY if i < len(numeric) else 1.0 for i in range(len(blocks))]
    prior_variances = np.concatenate([x ** np.arange(b.shape[1]) for x, b in zip(factors, blocks, strict=True)])
    design = np.hstack(blocks)
    design -= design.mean(0)
    mean, covariance = _fit_evidence(design, values / (values.std() or 1.0), groups, prior_variances)
    axes = [np.flatnonzero(groups == i) for i in range(len(numeric))]
    return [_summarise_response(mean[own], covariance[np.ix_(own, own)], edge) for own in axes]


def _legendre_basis(positions: FloatArray, degree: int) -> FloatArray:
    """Return Legendre polynomials of degrees 1 to `degree`, (n, degree), with variance 1 from 0 to 1; 0 if missing."""
    x = 2 * np.clip(np.nan_to_num(positions), 0, 1) - 1
    polynomials = np.polynomial.legendre.legvander(x, max(degree, 0))[:, 1:] * np.sqrt(2 * np.arange(1, degree + 1) + 1)
    polynomials[~np.isfinite(positions)] = 0
    return np.asarray(polynomials, dtype=np.float64)


def _fit_evidence(design: FloatArray, values: FloatArray, groups: IntArray, prior: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (mean, covariance) of the posterior of the weights of a linear model. Expectation maximisation estimates the variance
    of the noise and one prior variance per group of weights."""
    n, count = len(values), int(groups.max()) + 1
    variances, noise = np.full(count, 1.0 / count), 0.3
    gram, cross = design.T @ design, design.T @ values
    group_sizes = np.bincount(groups, minlength=count)
    for _ in range(200):
        precision = 1 / np.maximum(variances[groups] * prior, 1e-12)
        covariance = surface.root_and_inverse(gram / noise + np.diag(precision))[1]
        mean = covariance @ cross / noise
        second_moments = (mean**2 + np.diag(covariance)) / prior
        new_variances = np.bincount(groups, second_moments, count) / np.maximum(group_sizes, 1)
        residuals = values - design @ mean
        # Add two pseudo-residuals with 1 % of the variance of the values, because a few trials cannot show that the noise is zero.
        trace = noise * (len(prior) - precision @ np.diag(covariance))  # this equals the trace of gram @ covariance
        new_noise = float((residuals @ residuals + trace + 0.02) / (n + 2))
        has_converged = np.allclose(new_variances, variances, rtol=1e-3) and abs(new_noise - noise) < 1e-3 * noise
        variances, noise = new_variances, new_noise
        if has_converged:
            break
    return mean, np.asarray(covariance, dtype=np.float64)


def _summarise_response(mean: FloatArray, covariance: FloatArray, edge: float) -> AxisResponse:
    if not len(mean):
        return AxisResponse(0.0, 0.0, 0.0, 0.0)
    covariance_root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(mean)))
    drawn_weights = mean + np.random.default_rng(SEED).standard_normal((NUMBER_OF_DRAWS, len(mean))) @ covariance_root.T
    best = _GRID_POSITIONS[(drawn_weights @ _legendre_basis(_GRID_POSITIONS, len(mean)).T).argmin(1)]
    turns = []
    for end, inward in ((0.0, 1.0), (1.0, -1.0)):
        # One step of Newton's method from the end of the range leads to the turning point of each draw.
        f0, f1, f2 = (drawn_weights @ _legendre_basis(np.clip(end + inward * np.array([0.0, 0.05, 0.1]), 0, 1), len(mean)).T).T
        slope, curvature = (-3 * f0 + 4 * f1 - f2) / 0.1, (f0 - 2 * f1 + f2) / 0.05**2
        with np.errstate(divide="ignore", invalid="ignore"):
            drawn_turns = np.where(slope > 0, np.where(curvature > 0, slope / curvature, np.inf), 0.0)
        turns.append(float(np.quantile(drawn_turns, TURN_PROBABILITY, method="higher")))
    first, last = np.quantile(best, [(1 - OPTIMUM_INTERVAL_PROBABILITY) / 2, (1 + OPTIMUM_INTERVAL_PROBABILITY) / 2])
    low, high = float(np.mean(best <= edge)), float(np.mean(best >= 1 - edge))
    return AxisResponse(low, high, turns[0], turns[1], (float(first), float(last)))


MIN_TURN_CONFIDENCE = 0.95
"""Minimum confidence to call the outermost point worse than its neighbours."""
MIN_TURN_POINTS = 4
MIN_PARABOLA_POINTS = 8
"""Minimum number of points for the fit of a local parabola. It uses the better half of more points."""


def p_value_of_turn(positions: FloatArray, costs: FloatArray, at: float) -> float:
    """Return the p-value of the claim that the response turns before position `at`, so that a range beyond `at` gains nothing; 1
    for too few points.

    positions, costs: shape (n,), finite. The t-test uses the slope, at `at`, of a parabola through the better half of the points,
    because points far from the optimum say little about the turn.
    """
    point_count = min(len(costs), max(MIN_PARABOLA_POINTS, math.ceil(len(costs) / 2)))
    best_indices = np.argsort(costs, kind="stable")[:point_count]
    x, y = positions[best_indices] - at, costs[best_indices] - costs[best_indices[0]]
    degrees_of_freedom = len(y) - 3
    largest_difference = float(np.abs(y).max(initial=0.0))
    if degrees_of_freedom < 1 or len(np.unique(x)) < 3 or not 0 < largest_difference < math.inf:
        return 1.0
    design_matrix, y = np.stack([np.ones(len(x)), x, x**2], axis=1), y / largest_difference
    weights = np.linalg.lstsq(design_matrix, y, rcond=None)[0]
    variance = float(np.sum((y - design_matrix @ weights) ** 2)) / degrees_of_freedom
    slope_error = math.sqrt(max(variance * float(np.linalg.pinv(design_matrix.T @ design_matrix)[1, 1]), 1e-30))
    return float(stats.t.cdf(weights[1] / slope_error, degrees_of_freedom))


def response_turns_inside(positions: FloatArray, costs: FloatArray, side: RangeSide) -> bool:
    """Return True if costs along the only searched axis rise towards the end `side`, so that the optimum lies inside the range.

    positions, costs: shape (n,), finite. Costs rise if the outermost point is not the best one, and either a parabola through the
    better half of the points turns inside, or the outermost point is worse than its neighbours by more than noise.
    """
    outermost_first = np.argsort(positions if side == "low" else -positions, kind="stable")
    x, y = (positions if side == "high" else 1 - positions)[outermost_first], costs[outermost_first]
    if len(y) < MIN_TURN_POINTS or y[0] <= y.min():
        return False
    if p_value_of_turn(x, y, float(x[0])) > 1 / 2:
        return True
    better_half = y[1:][y[1:] <= np.median(y)]
    second_differences = np.diff(better_half if len(better_half) >= 3 else y[1:], n=2)
    noise_sd = math.sqrt(float(np.mean(second_differences**2)) / 6)
    noise_limit = float(stats.t.ppf(MIN_TURN_CONFIDENCE, len(second_differences))) * math.sqrt(2) * noise_sd
    return outermost_is_worse(positions, costs, side) and bool(y[0] - y[1:3].max() > noise_limit)


def outermost_is_worse(positions: FloatArray, costs: FloatArray, side: RangeSide) -> bool:
    """Return True if the point nearest to the end `side` is worse than the two next points."""
    outermost_first = np.argsort(positions if side == "low" else -positions, kind="stable")
    return len(outermost_first) > 2 and bool(costs[outermost_first[0]] > costs[outermost_first[1:3]].max())
