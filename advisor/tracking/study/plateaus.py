"""Finds trials that learned nothing: they never left a degenerate plateau, such as ln 10, which other trials left sooner, or
are no better than one after the same steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from advisor.contract import metric_direction
from advisor.model.space import FloatArray
from advisor.model.study import Curve
from advisor.tracking.study.objective_costs import ObjectiveCosts

MIN_PLATEAU_EVALUATIONS = 3
_MAX_PLATEAU_RANGE = 0.02
"""Maximum range of a plateau, as a share of its distance from the best result. Our choice."""
MIN_LEARNED_IMPROVEMENT = 0.05
"""Minimum improvement over the first evaluation, as a share of its distance to the best result. Our choice."""
_MAX_PLATEAU_TRIALS_FRACTION = 0.5
"""Maximum share of trials that may stay on a plateau; beyond it, the whole study has a fault."""
_MAX_CLASS_COUNT = 1000
_MAX_CHANCE_LEVEL_DISTANCE = 0.05
"""Maximum distance from guessing among k classes, in distances from k to k + 1 classes."""


def find_trials_on_plateaus(
    costs: ObjectiveCosts, trials: Sequence[int], chance: float | None, min_distance: float
) -> dict[int, str]:
    """Return the trials that never left a plateau (a level of guessing, of several trials, or an exact constant), each with a
    clause about it. min_distance: minimum distance of a plateau from the best result."""
    results = [float(costs.curves[t].finite.values.min()) for t in trials]
    if not results:
        return {}
    best_result = min(results)
    levels = {t: level for t in trials if math.isfinite(level := _plateau_level(costs, t, best_result))}
    known = _chance_levels(costs) if chance is None else np.array([chance])
    clauses: dict[int, str] = {}
    longest_stays: dict[float, int] = {}
    for trial, level in levels.items():
        distance = level - best_result
        if distance < min_distance:
            continue
        peers = [t for t, other in levels.items() if t != trial and abs(other - level) <= 1e-3 * distance]
        is_constant = np.ptp(_values_in_last_half(costs.curves[trial].finite.values)) <= 1e-9 * abs(level)
        guess = _is_chance_level(level, known) if chance is None else abs(level - chance) <= MIN_LEARNED_IMPROVEMENT * distance
        if not (peers or is_constant or guess):
            continue
        # Learning may only have started late: for example, the success rate of a policy is zero until its first success.
        key = round(level / distance, 3)
        if key not in longest_stays:
            limit = level - MIN_LEARNED_IMPROVEMENT * distance
            curves = [c for c in costs.curves if len(c.finite) and np.median(_values_in_last_half(c.finite.values)) < limit]
            longest_stays[key] = longest_temporary_plateau(curves, level, _MAX_PLATEAU_RANGE * distance)
        if 2 * longest_stays[key] >= len(costs.curves[trial].finite):
            continue
        first, at = float(costs.curves[trial].finite.values[0]), costs.objective_text(level)
        fell = level - first > MIN_LEARNED_IMPROVEMENT * distance
        how = f"fell from {costs.objective_text(first)} to {at}" if fell else f"stays at {at} from its first evaluation on"
        clauses[trial] = f"{costs.metric} {how}{' like other trials' if peers else ''}"
    if len(clauses) > _MAX_PLATEAU_TRIALS_FRACTION * len(trials):
        return {}
    clauses |= _find_trials_no_better_than_plateau(costs, trials, results, clauses, levels)
    return clauses if _do_other_trials_beat_plateau(costs, trials, results, clauses, levels) else {}


def _do_other_trials_beat_plateau(
    costs: ObjectiveCosts,
    trials: Sequence[int],
    results: Sequence[float],
    failed: Mapping[int, str],
    levels: Mapping[int, float],
) -> bool:
    """Return whether most of the other trials became better than the best plateau after the same number of steps.

    If most of them learned something but are no better, the plateau is a usual result, such as the share of the most frequent
    class in imbalanced data. Its trials must then not rank below trials with worse results.
    """
    plateaus = [t for t in failed if t in levels]
    level = min((levels[t] for t in plateaus), default=math.inf)
    steps = max((costs.curves[t].finite.steps[-1] for t in plateaus), default=0)
    pairs = zip(trials, results, strict=True)
    others = [r for t, r in pairs if t not in failed and costs.curves[t].finite.steps[-1] >= steps]
    limit = level - MIN_LEARNED_IMPROVEMENT * (level - min(results))
    return 2 * sum(result < limit for result in others) >= len(others)


def _find_trials_no_better_than_plateau(
    costs: ObjectiveCosts,
    trials: Sequence[int],
    results: Sequence[float],
    plateau_trials: Mapping[int, str],
    levels: Mapping[int, float],
) -> dict[int, str]:
    """Return trials with noisier curves that are no better than trials on a plateau after the same steps. results: lowest cost
    of each trial; levels: costs of the plateaus."""
    best, more = min(results), dict[int, str]()
    limit = min((levels[t] - MIN_LEARNED_IMPROVEMENT * (levels[t] - best) for t in plateau_trials), default=math.inf)
    steps = max((costs.curves[t].finite.steps[-1] for t in plateau_trials), default=0)
    for trial, result in zip(trials, results, strict=True):
        curve = costs.curves[trial].finite
        is_as_long = trial not in plateau_trials and curve.steps[-1] >= steps
        if is_as_long and result >= limit and not has_curve_fallen(curve.values, limit - best):
            more[trial] = f"{costs.metric} gets no better than in trials that never leave a plateau"
    return more


def longest_temporary_plateau(curves: Sequence[Curve], level: float, error: float) -> int:
    """Return the most consecutive evaluations that a trial spent at `level`, such as a success rate of 0, before it left it."""
    max_evaluations = 0
    for curve in curves:
        indices_off_level = np.flatnonzero(np.abs(curve.finite.values - level) > max(error, 1e-12))
        max_evaluations = max(max_evaluations, int(np.diff(indices_off_level, prepend=-1).max(initial=1)) - 1)
    return max_evaluations


def has_curve_fallen(values: FloatArray, distance: float) -> bool:
    """Return whether the trial learned something: the later half is clearly below the first quarter."""
    start = float(np.median(values[: max(len(values) // 4, 1)]))
    return start - float(np.median(_values_in_last_half(values))) > MIN_LEARNED_IMPROVEMENT * distance


def _plateau_level(costs: ObjectiveCosts, trial: int, best: float) -> float:
    """Return the level of a curve whose range is small relative to its distance from the result `best`, or NaN."""
    values = costs.curves[trial].finite.values
    second_half = _values_in_last_half(values)
    level = float(np.median(second_half))
    distance = level - best
    if len(second_half) < MIN_PLATEAU_EVALUATIONS or distance <= 0 or np.ptp(second_half) > _MAX_PLATEAU_RANGE * distance:
        return math.nan
    return level if costs.start_cost(trial) - values.min() <= MIN_LEARNED_IMPROVEMENT * distance else math.nan


def _values_in_last_half(values: FloatArray) -> FloatArray:
    return values[len(values) // 2 :]


def _chance_levels(costs: ObjectiveCosts) -> FloatArray:
    """Return the costs of guessing among 2, 3, ... classes; empty if the objective's name does not determine them."""
    classes = np.arange(2, _MAX_CLASS_COUNT + 1)
    quantity = metric_direction.quantity_words(costs.metric)
    if {"loss", "entropy"} & set(quantity):
        return np.log(classes)
    if {"accuracy", "acc1", "top1"} & set(quantity):
        return -1.0 / classes
    return 1 - 1.0 / classes if "error" in quantity else np.empty(0)


def _is_chance_level(level: float, known_chance: FloatArray) -> bool:
    if not len(known_chance):
        return False
    at = int(np.argmin(np.abs(known_chance - level)))
    gap = float(np.abs(np.diff(known_chance))[min(at, len(known_chance) - 2)])
    return bool(abs(known_chance[at] - level) <= _MAX_CHANCE_LEVEL_DISTANCE * gap)
