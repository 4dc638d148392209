"""Tests whether groups that are compared by their best trials were tuned equally well."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.model.space import BoolArray, FloatArray, IntArray, RangeSide
from advisor.stats import best_of, boundaries, ranks
from advisor_rules.space._compared_values import varies

MAX_UNLIKELY_END_PROBABILITY = 0.1
"""Maximum probability that the best value lies at the end of a range at which the rule excludes a best value there."""
SEED = 0
_N_PERMUTATIONS = 999
_MIN_CLUSTER_POINTS = 5
_MIN_SHARE_BEYOND_END = 0.2
"""Minimum share of the other groups' points beyond the end of a group's range at which the group's range counts as too
small."""
_NEARLY_ALL_SHARE = 0.8
"""Minimum share of nearly equal results at which a group of trials counts as having learned nothing."""
_MIN_EQUAL_RESULTS = 4
"""Minimum number of nearly equal results at which a group of trials may count as having learned nothing."""
_MAX_EQUAL_RESULTS_RANGE = 0.05
"""Maximum range of results that count as nearly equal, in standard deviations of the other groups' results."""


class PartlyTriedGroup(NamedTuple):
    """A group of trials that covers only a part of an axis and may be better beyond the end of that part."""

    group: int
    axis: int
    side: RangeSide
    """The end of the group's own range (low or high) beyond which the group may have better results."""
    end_position: float
    points_beyond_end: int
    """Number of the other groups' points beyond the end of the group's own range."""
    range_share: float
    probability: float
    """Probability that the group's best value lies at the end of its own range, computed only from the group's points."""
    p_value: float
    """p-value of the hypothesis that all groups were sampled equally, corrected for all groups and axes."""


def find_partly_tried_groups(
    groups: IntArray,
    numeric: list[FloatArray],
    costs: FloatArray,
    *,
    edge: float,
    certainty: float,
    level: float,
    comparable: bool = True,
) -> list[PartlyTriedGroup]:
    """Return the groups whose points cover only a part of an axis, smallest p-value first.

    groups: (n,) labels; numeric: positions (n,) on each axis, NaN if missing; costs: (n,), NaN if a trial failed. Each returned
    group meets two conditions. First, none of the group's points is among the outermost points at one end of the axis; the test
    of this condition is exact if all groups were sampled alike. Second, with probability `certainty` or more, the group's best
    value lies at the corresponding end of the group's own range. If an axis is `comparable` between groups, a weaker second
    condition suffices: the group lost to a trial beyond the end of the group's range, and the group's own points do not rule
    out that its best value lies at that end.
    """
    partly_tried: list[PartlyTriedGroup] = []
    labels = np.unique(groups).tolist()
    n_tests = len(labels) * len(numeric)
    best = int(np.nanargmin(costs)) if np.isfinite(costs).any() else 0
    for group in labels:
        mask = groups == group
        ends = [(axis, *end) for axis, u in enumerate(numeric) for end in _find_inner_ends(u[mask], u[~mask], level / n_tests)]
        if not ends or np.isfinite(costs[mask]).sum() < 2:
            continue
        stretched = [_stretch_to_unit_range(u[mask]) for u in numeric]
        responses = boundaries.fit_responses(stretched, [], ranks.log_rank_scores(costs[mask]), edge)
        for axis, side, at, beyond, end_p in ends:
            u, probability = numeric[axis], _chance_of_end(responses[axis], side)
            has_lost = comparable and (u[best] < at if side == "low" else u[best] > at)
            # At most one end of a range contains the best value with probability `certainty`. If neither end does, both ends
            # are tested.
            p = end_p * n_tests * (1 if probability >= certainty else 2)
            if p <= level and probability >= (MAX_UNLIKELY_END_PROBABILITY if has_lost else certainty):
                span = float(np.nanmax(u[mask]) - np.nanmin(u[mask]))
                partly_tried.append(PartlyTriedGroup(group, axis, side, at, beyond, span, probability, p))
    return sorted(partly_tried, key=lambda e: (e.p_value, -e.probability, e.group, e.axis))


def _chance_of_end(response: boundaries.AxisResponse, side: RangeSide) -> float:
    return response.chance_of_low_end if side == "low" else response.chance_of_high_end


def _find_inner_ends(own: FloatArray, rest: FloatArray, level: float) -> list[tuple[RangeSide, float, int, float]]:
    """Return the ends of a group's own range on one axis beyond which many of the other groups' points lie, as (side, position,
    number of points beyond, p-value). own: positions (m,) of the group's points; rest: positions (k,) of all other points."""
    own, rest = own[np.isfinite(own)], rest[np.isfinite(rest)]
    if len(np.unique(own)) < 2:
        return []
    low, high = float(own.min()), float(own.max())
    both: list[tuple[RangeSide, float, int]] = [("low", low, int(np.sum(rest < low))), ("high", high, int(np.sum(rest > high)))]
    ends = [
        (side, at, beyond, best_of.chance_of_drawing_no_target(len(own) + len(rest), len(own), beyond))
        for side, at, beyond in both
        if beyond >= max(1.0, _MIN_SHARE_BEYOND_END * len(rest))
    ]
    return [end for end in ends if end[3] <= level]


def _stretch_to_unit_range(positions: FloatArray) -> FloatArray:
    finite = positions[np.isfinite(positions)]
    if not len(finite) or np.ptp(finite) == 0:
        return np.full(len(positions), np.nan)
    return np.asarray((positions - finite.min()) / np.ptp(finite), dtype=np.float64)


def find_groups_with_narrow_range(
    groups: IntArray, numeric: list[FloatArray], costs: FloatArray, *, edge: float, certainty: float, level: float
) -> list[tuple[int, boundaries.ClusterAtEnd]]:
    """Return the losing groups whose good points cluster at an end of an axis, most significant first; the arguments are the
    same as for `find_partly_tried_groups`.

    The good points of the winning group must lie less close to that end, because then the range suits only the winner. The
    p-value is corrected for the number of losing groups.
    """
    is_finite = np.isfinite(costs)
    labels = np.unique(groups).tolist()
    if len(labels) < 2 or not is_finite.any():
        return []
    is_winner = groups == groups[np.nanargmin(costs)]
    varied = _varied_axes(numeric, is_winner)
    if not varied:
        return []
    fits = boundaries.fit_responses(varied, [], ranks.log_rank_scores(costs[is_winner]), edge)
    losers = [g for g in labels if not is_winner[groups == g].any() and is_finite[groups == g].sum() >= _MIN_CLUSTER_POINTS]
    found = []
    for group in losers:
        mask = groups == group
        own = _varied_axes(numeric, mask)
        for end in boundaries.ends_with_clusters(own, [], costs[mask], edge, certainty, level / len(losers)) if own else []:
            if _chance_of_end(fits[end.axis], end.side) <= MAX_UNLIKELY_END_PROBABILITY:
                p = len(losers) * max(end.p_value, _p_of_equal_clusters(numeric[end.axis], costs, mask, is_winner, end.side))
                if p <= level:
                    found.append((group, end._replace(p_value=p)))
    return sorted(found, key=lambda f: (f[1].p_value, -f[1].probability, f[0], f[1].axis))


def _varied_axes(numeric: list[FloatArray], mine: BoolArray) -> list[FloatArray]:
    """Return the positions of a group's points on each axis, NaN on an axis with only one value; empty if there is no other."""
    own = [np.where(varies(u[mine]), u[mine], np.nan) for u in numeric]
    return own if any(map(varies, own)) else []


def _p_of_equal_clusters(positions: FloatArray, costs: FloatArray, one: BoolArray, other: BoolArray, side: RangeSide) -> float:
    """Return the permutation p-value of the hypothesis that the good points of one group lie no closer to the given end than
    the good points of the other group. Points are ranked within their own group, so an overall difference has no effect."""
    has_value = np.isfinite(positions)
    if not (one & has_value).any() or not (other & has_value).any():
        return 1.0
    values = np.concatenate([ranks.log_rank_scores(costs[g & has_value]) for g in (one, other)])
    at = np.concatenate([positions[g & has_value] for g in (one, other)])
    weights = -values * (at - at.mean()) * (1 if side == "high" else -1)
    label = np.arange(len(weights)) < (one & has_value).sum()
    labels = np.vstack([label, np.random.default_rng(SEED).permuted(np.tile(label, (_N_PERMUTATIONS, 1)), axis=1)])
    leads = (labels @ weights) / labels[0].sum() - (~labels @ weights) / (~labels[0]).sum()
    return float(np.mean(leads >= leads[0] - 1e-9))


class SmallGroup(NamedTuple):
    """A group with so few trials that the winning group may lead only because the winning group had more trials."""

    group: int
    best_group: int
    smaller_group_size: int
    best_group_size: int
    lead_probability: float
    """Probability that the best group would still lead if it had only as many trials as the smaller group."""
    p_value: float
    """p-value of the hypothesis that both groups are tried equally often, corrected for all groups."""


def find_small_groups(groups: IntArray, costs: FloatArray, *, certainty: float, level: float) -> list[SmallGroup]:
    """Return the groups that have too few trials for a comparison with the best group, least certain lead first."""
    is_finite = np.isfinite(costs)
    labels = np.unique(groups)
    if len(labels) < 2 or not is_finite.any():
        return []
    best = int(groups[np.nanargmin(costs)])
    best_costs = costs[is_finite & (groups == best)]
    small_groups = []
    for group in labels.tolist():
        own_costs = costs[is_finite & (groups == group)]
        p = float(stats.binom.cdf(len(own_costs), len(own_costs) + len(best_costs), 0.5)) * (len(labels) - 1)
        if group == best or p > level or (len(own_costs) and own_costs.min() <= best_costs.min()):
            continue
        chance = best_of.chance_of_better_trial(best_costs, len(own_costs), float(own_costs.min())) if len(own_costs) else 0.0
        if chance < certainty:
            small_groups.append(SmallGroup(group, best, len(own_costs), len(best_costs), chance, p))
    return sorted(small_groups, key=lambda o: (o.lead_probability, o.p_value, o.group))


class UntrainedGroup(NamedTuple):
    """A group in which nearly all points failed, or ended at one bad level whatever the other hyperparameters."""

    group: int
    points: int
    """Number of points that failed or ended at the common level."""
    p_value: float
    """p-value of the hypothesis that all groups train equally well, corrected for the number of groups."""
    common_cost: float | None = None
    """Cost of the common level: the median of the nearly equal results; None if the group's points failed."""


def find_stuck_groups(groups: IntArray, costs: FloatArray, *, level: float) -> list[UntrainedGroup]:
    """Return the groups in which nearly all results are equally bad, smallest p-value first."""
    is_finite = np.isfinite(costs)
    labels = np.unique(groups).tolist()
    stuck_groups = []
    for group in labels:
        own, others = np.sort(costs[is_finite & (groups == group)]), costs[is_finite & (groups != group)]
        count = math.ceil(_NEARLY_ALL_SHARE * len(own))
        if count < _MIN_EQUAL_RESULTS or len(others) < _MIN_EQUAL_RESULTS:
            continue
        ranges = own[count - 1 :] - own[: len(own) - count + 1]
        equal = own[int(ranges.argmin()) :][:count]
        if not (np.ptp(equal) <= _MAX_EQUAL_RESULTS_RANGE * float(np.std(others)) and equal[0] > float(np.median(others))):
            continue
        all_costs = np.concatenate([own, others])
        n_close = int(np.sum((all_costs >= equal[0]) & (all_costs <= equal[-1])))
        # The window of equal results was placed to fit the group's results. The p-value is therefore corrected for all windows
        # that start at one of these results.
        p = len(all_costs) * len(labels) * math.comb(n_close, count) / math.comb(len(all_costs), count)
        if p <= level:
            stuck_groups.append(UntrainedGroup(group, count, p, float(np.median(equal))))
    return sorted(stuck_groups, key=lambda s: (s.p_value, s.group))


def find_failing_groups(groups: IntArray, costs: FloatArray, *, level: float) -> list[UntrainedGroup]:
    """Return the groups in which nearly all points failed (Fisher's exact test), most significant first."""
    has_failed, found = np.isnan(costs), []
    for group in (labels := np.unique(groups).tolist()):
        size, count = int(np.sum(groups == group)), int(np.sum(has_failed & (groups == group)))
        p = len(labels) * float(stats.hypergeom.sf(count - 1, len(costs), int(has_failed.sum()), size))
        if count >= _NEARLY_ALL_SHARE * size and p <= level:
            found.append(UntrainedGroup(group, count, p))
    return sorted(found, key=lambda f: (f.p_value, f.group))
