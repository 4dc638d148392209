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
"""Share of the significance level spent on the response surface, which shows effects that single axes do not show."""
TURN_PROBABILITY = 0.5
"""Probability with which an extended range includes the turning point. One half suffices: the next round can extend again, and
a wider range is sampled less densely."""
MAX_CLUSTER_P_VALUE = 0.2
"""Significance level of a cluster among the successful trials alone, which is needed because failures at one end make
successful trials cluster at the other."""
OPTIMUM_INTERVAL_PROBABILITY = 0.9
POLYNOMIAL_DEGREE = 3
_PRIOR_VARIANCE_DECAY = 0.25
"""Factor on the prior variance from one degree to the next; smooth responses are more likely."""
_GRID_POSITIONS = np.linspace(0, 1, 41)


# --- clusters of good trials at an end -------------------------------------------------------------------------------------------


def truncate_at_median(costs: FloatArray) -> FloatArray:
    """Return the costs, truncated at their median and centred, so that only differences within the better half remain. NaN
    counts as the worst cost. All results are zero if subtracting such large costs overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        good = np.minimum(np.where(np.isnan(costs), np.nanmax(costs), costs), np.nanmedian(costs))
        centred = good - good.mean()
    return centred if np.isfinite(centred).all() and np.isfinite(centred.std()) else np.zeros(len(costs))


def p_values_of_clusters(positions: FloatArray, values: FloatArray) -> FloatArray:
    """Return p-values, shape (d, 2), of clusters of low values at the low and the high end of d axes, adjusted for testing 2 *
    d ends.

    positions: (n, d), NaN if a point lacks the axis; values: (n,). The statistic is the correlation between values and ranks of
    positions; its null distribution is the maximum over the axes under permutations of the values (Westfall and Young; all of
    them for n <= 7). An axis on which all positions are equal has p = 1.
    """
    n, is_known = len(values), np.isfinite(positions)
    ranks = stats.rankdata(np.where(is_known, positions, np.nan), axis=0, nan_policy="omit")
    ranks = np.nan_to_num(ranks - (is_known.sum(0) + 1) / 2)
    lengths = np.sqrt((ranks**2).sum(0))
    ranks /= np.where(lengths > 0, lengths, 1.0)
    centred = values - values.mean()
    size = np.sqrt((centred**2).sum())
    if n < 2 or size == 0 or not ranks.any():
        return np.ones((positions.shape[1], 2))
    centred = centred / size
    observed = centred @ ranks
    if n <= 7:
        rows = centred[np.array(list(permutations(range(n))))]
    else:
        times = 4999 if n <= 200 else 1999
        shuffled = np.random.default_rng(SEED).permuted(np.tile(centred, (times, 1)), axis=1)
        rows = np.vstack([centred, shuffled])
    largest = np.abs(rows @ ranks).max(1)
    p_values = [(np.mean(largest >= s * observed[:, None] - 1e-9, axis=1)) for s in (1, -1)]
    return np.stack(p_values, axis=1)


class EndWithCluster(NamedTuple):
    """An end of an axis at which good trials cluster, and the response is best."""

    axis: int
    side: RangeSide
    probability: float
    """Probability that the best position on the axis lies at this end."""
    p_value: float
    """Probability of an equally strong cluster at any end of any axis by chance."""
    p_value_among_successful_trials: float = 0.0
    """p-value of the cluster among the successful trials alone; 0 if no trial failed."""


def ends_with_clusters(
    numeric: list[FloatArray], choices: list[FloatArray], costs: FloatArray, edge: float, certainty: float, level: float
) -> list[EndWithCluster]:
    """Return the ends of axes at which good trials cluster, most significant first. costs: (n,), NaN for failed trials.

    numeric, choices: positions on each axis, from 0 to 1, (n,). An end's p-value is at most `level`, and the best position lies
    within `edge` of it with probability `certainty` or more. `p_values_of_clusters` and `fit_responses` test each axis alone;
    with several axes, a quarter of the level is spent on the response surface, which detects effects that depend on a second
    axis.
    """
    values, several = log_rank_scores(costs), len(numeric) + len(choices) > 1
    p = p_values_of_clusters(np.stack(numeric, axis=1), values) / (1 - SURFACE_TEST_LEVEL_SHARE if several else 1)
    ends_by_axis = {}
    if p.min() <= level:
        for axis, response in enumerate(fit_responses(numeric, choices, values, edge)):
            sides: tuple[tuple[int, RangeSide, float], ...] = (
                (0, "low", response.chance_of_low_end),
                (1, "high", response.chance_of_high_end),
            )
            for column, side, probability in sides:
                if probability >= certainty and p[axis, column] <= level:
                    ends_by_axis[axis] = EndWithCluster(axis, side, probability, float(p[axis, column]))
    # With too many axes, even the smallest p-value that a permutation test can reach would exceed the level.
    if several and len(numeric) / SURFACE_TEST_LEVEL_SHARE / (surface.NUMBER_OF_PERMUTATIONS + 1) <= level:
        for end in surface.find_ends_with_optimum(numeric, choices, values, edge, certainty):
            chance = end.p_value * len(numeric) / SURFACE_TEST_LEVEL_SHARE
            if chance <= level and end.axis not in ends_by_axis:
                ends_by_axis[end.axis] = EndWithCluster(end.axis, end.side, end.probability, chance)
    supported = []
    for cluster in ends_by_axis.values():
        known = np.isfinite(costs) & np.isfinite(numeric[cluster.axis])
        p_among_successful = 0.0
        if not np.isfinite(costs).all() and known.sum() >= 3:
            both = p_values_of_clusters(numeric[cluster.axis][known][:, None], log_rank_scores(costs[known]))
            p_among_successful = float(both[0, 0 if cluster.side == "low" else 1])
        if p_among_successful <= MAX_CLUSTER_P_VALUE:
            supported.append(cluster._replace(p_value_among_successful_trials=p_among_successful))
    return sorted(supported, key=lambda c: (c.p_value, -c.probability, c.axis))


# --- the response along an axis -------------------------------------------------------------------------------------------------


class Response(NamedTuple):
    """The position of the best value along one axis, from posterior draws of the response."""

    chance_of_low_end: float
    """Probability that the best position lies at this end."""
    chance_of_high_end: float
    low_turn_distance: float
    """Distance, in range widths, from the end to the turning point: the `TURN_PROBABILITY` quantile over draws that parabolas
    extrapolate; inf if too few turn."""
    high_turn_distance: float
    optimum: tuple[float, float] = (0.0, 1.0)
    """Central interval with the best position, of probability `OPTIMUM_INTERVAL_PROBABILITY`."""


def fit_responses(numeric: list[FloatArray], choices: list[FloatArray], values: FloatArray, edge: float) -> list[Response]:
    """Return the response of `values`, (n,), along each numeric axis, adjusted for all other axes; positions lie between 0 and
    1.

    The model is a sum of a cubic polynomial for each numeric axis and an effect for each choice. Prior variances and noise
    maximise the evidence (MacKay), so effects of irrelevant axes shrink to zero. edge: share of a range that counts as one of
    its ends.
    """
    levels = [np.unique(p[np.isfinite(p)]) for p in (*numeric, *choices)]
    blocks = [_legendre_basis(p, min(POLYNOMIAL_DEGREE, len(known) - 1)) for p, known in zip(numeric, levels, strict=False)]
    blocks += [(p[:, None] == known).astype(np.float64) for p, known in zip(choices, levels[len(numeric) :], strict=True)]
    groups = np.repeat(np.arange(len(blocks)), [b.shape[1] for b in blocks])
    decays = [_PRIOR_VARIANCE_DECAY if i < len(numeric) else 1.0 for i in range(len(blocks))]
    prior = np.concatenate([decay ** np.arange(b.shape[1]) for decay, b in zip(decays, blocks, strict=True)])
    design = np.hstack(blocks)
    standard_deviation = values.std()
    mean, covariance = _fit_by_evidence(design - design.mean(0), values / (standard_deviation or 1.0), groups, prior)
    responses_of_axes = []
    for i in range(len(numeric)):
        own = np.flatnonzero(groups == i)
        responses_of_axes.append(_summarise_response(mean[own], covariance[np.ix_(own, own)], edge))
    return responses_of_axes


def _legendre_basis(positions: FloatArray, degree: int) -> FloatArray:
    """Return Legendre polynomials of degrees 1 to `degree`, (n, degree), of unit variance over 0 to 1; 0 if missing."""
    x = 2 * np.clip(np.nan_to_num(positions), 0, 1) - 1
    base = np.polynomial.legendre.legvander(x, max(degree, 0))[:, 1:] * np.sqrt(2 * np.arange(1, degree + 1) + 1)
    base[~np.isfinite(positions)] = 0
    return np.asarray(base, dtype=np.float64)


def _fit_by_evidence(
    design: FloatArray, values: FloatArray, groups: IntArray, prior: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return (mean, covariance) of the posterior of the weights. Expectation maximisation estimates the variance of the noise
    and one prior variance per group of weights."""
    n, count = len(values), int(groups.max()) + 1
    scale, noise = np.full(count, 1.0 / count), 0.3
    gram, cross = design.T @ design, design.T @ values
    sizes = np.bincount(groups, minlength=count)
    for _ in range(200):
        precision = 1 / np.maximum(scale[groups] * prior, 1e-12)
        covariance = surface.root_and_inverse(gram / noise + np.diag(precision))[1]
        mean = covariance @ cross / noise
        second_moments = (mean**2 + np.diag(covariance)) / prior
        new_scale = np.bincount(groups, second_moments, count) / np.maximum(sizes, 1)
        residual = values - design @ mean
        # Add two pseudo-residuals with 1 % of the variance of the values, because a few trials cannot show that the noise is zero.
        explained = noise * (len(prior) - precision @ np.diag(covariance))  # this equals the trace of gram @ covariance
        new_noise = float((residual @ residual + explained + 0.02) / (n + 2))
        done = np.allclose(new_scale, scale, rtol=1e-3) and abs(new_noise - noise) < 1e-3 * noise
        scale, noise = new_scale, new_noise
        if done:
            break
    return mean, np.asarray(covariance, dtype=np.float64)


def _summarise_response(mean: FloatArray, covariance: FloatArray, edge: float) -> Response:
    if not len(mean):
        return Response(0.0, 0.0, 0.0, 0.0)
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(len(mean)))
    draws = mean + np.random.default_rng(SEED).standard_normal((NUMBER_OF_DRAWS, len(mean))) @ root.T
    best = _GRID_POSITIONS[(draws @ _legendre_basis(_GRID_POSITIONS, len(mean)).T).argmin(1)]
    steps = []
    for end, inward in ((0.0, 1.0), (1.0, -1.0)):
        # One step of Newton's method from the end of the range leads to the turning point of each draw.
        f0, f1, f2 = (draws @ _legendre_basis(np.clip(end + inward * np.array([0.0, 0.05, 0.1]), 0, 1), len(mean)).T).T
        slope, curvature = (-3 * f0 + 4 * f1 - f2) / 0.1, (f0 - 2 * f1 + f2) / 0.05**2
        falls = slope > 0  # the cost falls towards the end of the range
        with np.errstate(divide="ignore", invalid="ignore"):
            turns = np.where(falls, np.where(curvature > 0, slope / curvature, np.inf), 0.0)
        steps.append(float(np.quantile(turns, TURN_PROBABILITY, method="higher")))
    first, last = np.quantile(best, [(1 - OPTIMUM_INTERVAL_PROBABILITY) / 2, (1 + OPTIMUM_INTERVAL_PROBABILITY) / 2])
    optimum = (float(first), float(last))
    return Response(float(np.mean(best <= edge)), float(np.mean(best >= 1 - edge)), steps[0], steps[1], optimum)


MIN_TURN_CONFIDENCE = 0.95
"""Confidence required to call the outermost point worse than its neighbours."""
MIN_TURN_POINTS = 4
MIN_PARABOLA_POINTS = 8
"""Minimum number of points to which a local parabola is fitted. The parabola is fitted to the better half of the points, or to
all points if their better half is too small."""


def p_value_of_turn(positions: FloatArray, costs: FloatArray, at: float) -> float:
    """Return the p-value of the claim that the response turns before position `at`, so that a range beyond `at` gains nothing.

    positions, costs: (n,), finite. A t-test of the slope at `at` of a parabola through the better half of the points, because
    points far from the optimum say little about the turn; 1 for too few points.
    """
    number = min(len(costs), max(MIN_PARABOLA_POINTS, math.ceil(len(costs) / 2)))
    local = np.argsort(costs, kind="stable")[:number]
    x, y = positions[local] - at, costs[local] - costs[local[0]]
    freedom = len(y) - 3
    size = float(np.abs(y).max(initial=0.0))
    if freedom < 1 or len(np.unique(x)) < 3 or not 0 < size < math.inf:
        return 1.0
    design, y = np.stack([np.ones(len(x)), x, x**2], axis=1), y / size
    weights = np.linalg.lstsq(design, y, rcond=None)[0]
    variance = float(np.sum((y - design @ weights) ** 2)) / freedom
    error = math.sqrt(max(variance * float(np.linalg.pinv(design.T @ design)[1, 1]), 1e-30))
    return float(stats.t.cdf(weights[1] / error, freedom))


def response_turns_inside(positions: FloatArray, costs: FloatArray, side: RangeSide) -> bool:
    """Return True if costs along the only searched axis rise before the end, so that the optimum lies inside the range.

    positions, costs: (n,), finite. The outermost point is not the best, and is worse than its neighbours by more than noise
    (from second differences within the better half), or a parabola through the better half turns inside.
    """
    order = np.argsort(positions if side == "low" else -positions, kind="stable")
    x, y = (positions if side == "high" else 1 - positions)[order], costs[order]
    if len(y) < MIN_TURN_POINTS or y[0] <= y.min():
        return False
    if p_value_of_turn(x, y, float(x[0])) > 1 / 2:
        return True
    good = y[1:][y[1:] <= np.median(y)]
    second_differences = np.diff(good if len(good) >= 3 else y[1:], n=2)
    noise = math.sqrt(float(np.mean(second_differences**2)) / 6)
    noise_limit = float(stats.t.ppf(MIN_TURN_CONFIDENCE, len(second_differences))) * math.sqrt(2) * noise
    return outermost_is_worse(positions, costs, side) and bool(y[0] - y[1:3].max() > noise_limit)


def outermost_is_worse(positions: FloatArray, costs: FloatArray, side: RangeSide) -> bool:
    """Return True if the point nearest to the end is worse than the two points next to it."""
    order = np.argsort(positions if side == "low" else -positions, kind="stable")
    return len(order) > 2 and bool(costs[order[0]] > costs[order[1:3]].max())
