"""Finds the part of an axis that contains the good points, and the probability that this part is so small by chance."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp

from advisor.computed.space.settings import Settings
from advisor.model import parameter_kinds
from advisor.model.space import BoolArray, FloatArray, IntArray, is_training_length
from advisor.model.study import Study
from advisor.stats.ranks import choose_evenly_by_rank, normal_scores

MIN_GOOD_POINTS = 4
MIN_POINTS = 9
"""Minimum number of points on an axis; with fewer, no result can be significant at 5 %."""
SEED = 0
_BAD_COST_QUANTILE = 0.9
_MAX_GOOD_OUTSIDE_SHARE = 0.05
"""Maximum share of the good points that may lie outside the region at each end."""
_N_PERMUTATIONS = 999
_FIRST_BATCH_PERMUTATIONS = 99
"""Number of permutations in the first batch if there are many hyperparameters; most hyperparameters need no further batches."""
_MAX_PERMUTATION_BATCHES = 21
"""Maximum number of batches of permutations: with 1,000 hyperparameters, a significance level of 5 % needs 20,000
permutations."""
_MAX_PERMUTED_POINTS = 300
"""Maximum number of points to permute; the permuted points are evenly spaced in rank. A hyperparameter whose effect shows only
with more points hardly matters."""
_RUN_LENGTH_SHARES = np.linspace(0.1, 0.9, 9)
_MIN_CUT_AXIS_SHARE = 0.1
_AXIS_END_SHARE = 0.2


class GoodRegion(NamedTuple):
    """The part of one axis that contains the good points, except up to 5 % of the good points at each end."""

    low: float
    high: float
    """Positions of the ends of the region."""
    good_count: int
    good_outside_count: int
    inside: int
    """Number of points inside the region, good or not."""
    margin: float
    """Distance beyond each end of the region within which further good points are expected."""
    p_value: float
    """p-value: probability that the same number of random points lie at least as close together."""


def narrowable_parameters(study: Study, tried: Settings, *, levels: int) -> list[str]:
    return [
        name
        for name, u in tried.numeric.items()
        if len(np.unique(u[np.isfinite(u)])) >= levels
        and not is_training_length(name)
        and not parameter_kinds.is_batch_size(name)
        and not parameter_kinds.searches_architecture(study, name)
    ]


def max_good_distance(study: Study, tried: Settings, share: float, of_training: float) -> float:
    """Return the maximum distance of a good result from the best result, as the larger of two amounts: `share` times the
    distance from the best result to the 90 % quantile and, if most settings have several evaluations, `of_training` times the
    improvement from the median first evaluation to the best result."""
    successful_costs = tried.costs[~tried.failed]
    if not len(successful_costs):
        return 0.0
    curves = [study.cost_curve(group[0]).finite for group in tried.trials]
    starts = [float(c.values[0]) for c in curves if len(c) > 1]
    with np.errstate(over="ignore", invalid="ignore"):
        by_range = share * float(np.quantile(successful_costs, _BAD_COST_QUANTILE) - successful_costs.min())
        by_training = of_training * float(np.median(starts) - successful_costs.min()) if 2 * len(starts) > len(curves) else 0.0
    return max((x for x in (by_range, by_training) if math.isfinite(x)), default=0.0)


def mask_good_points(costs: FloatArray, share: float, tolerance: float) -> BoolArray:
    """Return a mask (n,) of the good points: the best `share` of the points, at least 4, and all points within `tolerance` of
    the best.

    Points with NaN costs are never good. Points as good as the last good point are also good.
    """
    ordered = np.sort(costs)
    count = min(max(math.ceil(share * len(costs)), MIN_GOOD_POINTS), int(np.isfinite(ordered).sum()))
    if count == 0:
        return np.zeros(len(costs), dtype=np.bool_)
    with np.errstate(over="ignore"):
        return np.asarray(costs <= max(float(ordered[count - 1]), float(ordered[0] + tolerance)), dtype=np.bool_)


def find_good_region(positions: FloatArray, costs: FloatArray, is_good: BoolArray, missed: float) -> GoodRegion | None:
    """Return the region of the good points from positions and costs, (n,) each; None for fewer than 4 good points.

    The region contains the best three points. The margin of the region is t times its length. If k good points are spread
    evenly over a part of the axis, this part extends beyond the margin with probability (1 + t)^-(k - 1); t is chosen so that
    this probability is `missed`.
    """
    count = int(is_good.sum())
    if count < MIN_GOOD_POINTS:
        return None
    at, best = np.sort(positions[is_good]), positions[np.argsort(costs, kind="stable")[:3]]
    strays = int(_MAX_GOOD_OUTSIDE_SHARE * count)
    low, high = float(min(at[strays], best.min())), float(max(at[count - 1 - strays], best.max()))
    n_inside = int(np.sum((positions >= low) & (positions <= high)))
    gaps = count - 1 - 2 * strays
    margin = (high - low) * (missed ** (-1 / gaps) - 1)
    n_outside = int(np.sum((at < low) | (at > high)))
    return GoodRegion(low, high, count, n_outside, n_inside, margin, chance_of_rank_span(len(positions), count, gaps, n_inside))


def p_of_unrelated_costs(positions: FloatArray, costs: FloatArray, level: float = 1.0) -> float:
    """Return the p-value of the hypothesis that costs (n,) are unrelated to positions (n,); NaN costs tie as the worst.

    The test permutes the ranks of the costs. The statistic is the largest contrast between a run of neighbouring points along
    the axis and all other points. All points enter the test, because the few good points alone are weak evidence if there are
    many axes. The permutations keep points at the same position together. The number of permutations grows until p-values as
    small as `level` are possible.
    """
    sample = choose_evenly_by_rank(costs, _MAX_PERMUTED_POINTS)
    _, at = np.unique(positions[sample], return_inverse=True)
    order, sizes = np.argsort(at, kind="stable"), np.cumsum(np.bincount(at))
    scores, n = normal_scores(costs[sample]), len(sample)
    borders = np.concatenate([[0], sizes])
    starts, ends = _runs_of_positions(borders, n)
    if not len(starts):
        return 1.0
    rng = np.random.default_rng(SEED)
    observed = _compute_best_contrasts(scores[None, order], borders, starts, ends)[0]
    n_as_good = n_draws = 1
    first_batch = [_FIRST_BATCH_PERMUTATIONS] if 10 * level * _FIRST_BATCH_PERMUTATIONS < 1 else []
    for size in [*first_batch, *[_N_PERMUTATIONS] * _MAX_PERMUTATION_BATCHES]:
        permuted_scores = rng.permuted(np.tile(scores, (size, 1)), axis=1)
        n_as_good += int(np.sum(_compute_best_contrasts(permuted_scores[:, order], borders, starts, ends) >= observed - 1e-9))
        n_draws += size
        if n_as_good > 1 or 1 / n_draws <= level:
            break
    return n_as_good / n_draws


def _compute_best_contrasts(scores: FloatArray, borders: IntArray, starts: IntArray, ends: IntArray) -> FloatArray:
    """Return, for each row of scores (k, n) in order along the axis, the best contrast between a run of points and the rest."""
    n = scores.shape[1]
    sums = np.hstack([np.zeros((len(scores), 1)), np.cumsum(scores, axis=1)])[:, borders]
    length = (borders[ends] - borders[starts]).astype(np.float64)
    return np.asarray(((sums[:, starts] - sums[:, ends]) / np.sqrt(length * (n - length) / n)).max(1), dtype=np.float64)


def _runs_of_positions(borders: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Return (starts, ends) of runs of neighbouring positions that contain at least 10 %, 20 %, … of the n points, but not
    all."""
    starts = np.tile(np.arange(len(borders) - 1), len(_RUN_LENGTH_SHARES))
    min_borders = borders[starts] + np.repeat(np.ceil(_RUN_LENGTH_SHARES * n), len(borders) - 1)
    ends = np.searchsorted(borders, min_borders)
    is_valid = ends < len(borders)
    starts, ends = starts[is_valid], ends[is_valid]
    is_valid = borders[ends] - borders[starts] < n
    return starts[is_valid], ends[is_valid]


def range_to_keep(part: GoodRegion, positions: FloatArray, failed: BoolArray) -> tuple[float, float]:
    """Return the interval (low, high), in 0..1, of the axis that is worth searching: the region of good settings with a margin
    at each end.

    positions, failed: (n,). An end of the axis is not cut off if good points lie in the outer fifth of the axis, if less than a
    tenth of the axis would be cut off, or if most points beyond the region failed.
    """
    low, high = max(part.low - part.margin, 0.0), min(part.high + part.margin, 1.0)
    below, above = failed[positions < part.low], failed[positions > part.high]
    if part.low < _AXIS_END_SHARE or low < _MIN_CUT_AXIS_SHARE or 2 * below.sum() > len(below):
        low = 0.0
    if part.high > 1 - _AXIS_END_SHARE or high > 1 - _MIN_CUT_AXIS_SHARE or 2 * above.sum() > len(above):
        high = 1.0
    return low, high


def range_with_optimum(
    part: GoodRegion, optimum: tuple[float, float], positions: FloatArray, failed: BoolArray
) -> tuple[float, float]:
    """Return the part of the axis to keep; it contains both the good points and the interval in which the fitted response is
    probably best."""
    wider = part._replace(low=min(part.low, optimum[0]), high=max(part.high, optimum[1]), margin=0.0)
    return range_to_keep(wider, positions, failed)


def extend_to_best_points(kept: tuple[float, float], positions: FloatArray, costs: FloatArray) -> tuple[float, float]:
    """If one of the best two points lies at an end of the part of the range to keep, extend the part halfway to the next
    point."""
    (low, high), best = kept, positions[np.argsort(costs, kind="stable")[:2]]
    below, above = positions[positions < low], positions[positions > high]
    if len(below) and best.min() <= low:
        low = (low + float(below.max())) / 2
    if len(above) and best.max() >= high:
        high = (high + float(above.min())) / 2
    return low, high


def find_outstanding_region(positions: FloatArray, costs: FloatArray, tolerance: float) -> GoodRegion | None:
    """Return the region around a few neighbouring points that are far better than all other points; None if no points are.

    The rank test needs four good points. If there are fewer good points, the size of the difference between results counts
    instead of ranks: the best points must be neighbours and lead by more than the range of all others. At least `MIN_POINTS`
    points must lie outside the region. The region extends to the nearest of the other points.
    """
    best = float(np.nanmin(costs))
    is_good, is_other = costs <= best + tolerance, costs > best + tolerance
    count = int(is_good.sum())
    if count >= MIN_GOOD_POINTS or is_other.sum() < MIN_POINTS:
        return None
    low, high, other_points = float(positions[is_good].min()), float(positions[is_good].max()), positions[~is_good]
    below, above = other_points[other_points < low], other_points[other_points > high]
    with np.errstate(over="ignore", invalid="ignore"):
        is_far_better = costs[is_other].min() - costs[is_good].max() > np.ptp(costs[is_other])
    if not (len(below) and len(above)) or len(below) + len(above) < len(other_points) or not is_far_better:
        return None
    margin = max(low - float(below.max()), float(above.min()) - high)
    return GoodRegion(low, high, count, 0, count, margin, 1 / len(costs))


def chance_of_rank_span(n: int, count: int, gaps: int, span: int) -> float:
    """Return the exact probability that `gaps` + 1 consecutive ranks, of `count` random ranks among `n`, span at most `span`.

    The probability is the same for every group of consecutive ranks, because the gaps between random ranks are exchangeable.
    """
    h = np.arange(gaps + 1, min(span, n) + 1, dtype=np.float64)
    h = h[n - h + 1 >= count - gaps]
    if not len(h):
        return 0.0 if span < gaps + 1 else 1.0
    log_counts = _log_binomial_coefficient(h - 2, gaps - 1) + _log_binomial_coefficient(n - h + 1, count - gaps)
    return float(min(1.0, np.exp(logsumexp(log_counts) - _log_binomial_coefficient(n, count))))


def _log_binomial_coefficient(n: FloatArray | float, k: int) -> FloatArray:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), dtype=np.float64)
