"""Finds trials whose process ended normally, but whose curves show that the training failed.

A trial diverged if a loss stays non-finite to the end, if the objective fell back to a constant, or if both the objective and
the training loss lost most of their earlier improvement. A trial learned nothing if the objective never left a degenerate
plateau (such as ln 10) that most other trials left sooner, or if its result is no better than such a plateau after the same
number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from advisor.contract import metric_direction
from advisor.model import words
from advisor.model.space import BoolArray, FloatArray
from advisor.model.study import Curve, CurveBlock, Status
from advisor.tracking.study import metric_names

_MIN_PLATEAU_EVALUATIONS = 3
"""Minimum number of evaluations on a plateau to recognise the plateau."""
_MIN_CONSTANT_TAIL_FRACTION = 0.1
"""Minimum fraction of a trial's evaluations that must be constant at its end for the trial to count as collapsed to a constant."""
_FLAT = 0.02
"""Maximum range of the values on a plateau, as a fraction of the plateau's distance from the best result. Our choice."""
_CONSTANT = 0.01
"""Maximum distance from the last value at which a value counts as equal to it, as a fraction of the trial's earlier
improvement. Our choice."""
_MIN_LEARNING_GAIN = 0.05
"""Minimum improvement over the first evaluation that counts as learning, as a fraction of the distance to the best result. Our
choice."""
_MIN_LOST_GAIN_FRACTION = 0.8
"""Minimum fraction of the improvement in the objective that a collapse destroys. Our choice."""
_MIN_JOINTLY_LOST_GAIN_FRACTION = 0.5
"""Minimum fraction of the improvement that a collapse destroys if the training loss fell clearly before: most of the
improvement."""
_MIN_LATER_GAIN = 0.05
"""Minimum later improvement of the objective, as a fraction of its range in the study, which shows that training continued
after a non-finite loss and only the logged loss is wrong."""
_MIN_GAIN_TO_NOISE_RATIO = 5.0
"""Minimum improvement that a collapsed trial loses, in units of the median difference between successive evaluations after the
loss. Our choice."""
_MAX_PLATEAU_TRIALS_FRACTION = 0.5
"""Maximum fraction of trials on a plateau at which these trials count as failed. A larger fraction of trials on a plateau means
a fault of the whole study."""
_MAX_CLASSES = 1000
_MIN_EXAMPLES = 5
"""Minimum number of validation examples by which two accuracies must differ if one is a plateau below the other, or if a trial
gained and lost this difference. If two equally good models differ in five examples, a given one of them is right in all five with
probability 1/32 (sign test).
"""
_MIN_GAP = 1e-5
"""Minimum relative difference between two accuracies; smaller ones are rounding errors of 32-bit floats."""
_MAX_GAP_REMAINDER = 0.1
"""Maximum distance of an accuracy from a multiple of one example, in examples; allows for logged accuracies that are rounded."""
_MAX_GUESSED_DIFFERENCE = 0.5
"""Maximum detectable difference between two accuracies, as a share of the range of all accuracies, if the number of validation
examples is unknown. Our choice."""
_MAX_CHANCE_LEVEL_DISTANCE = 0.05
"""Maximum distance of a plateau from the score of guessing among k classes, as a fraction of the difference between guessing
among k and among k + 1 classes."""


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """End status of a trial, and a clause with the evidence for it, which is empty if the source stated the status."""

    status: Status
    reason: str = ""


@dataclass(frozen=True)
class ObjectiveCosts:
    """The objective of each trial, converted to a cost (lower is better)."""

    metric: str
    curves: Sequence[Curve]
    """Cost curve of each trial, shape (trials,). The costs may be NaN or infinite."""
    sign: int
    """1 if the objective is minimised, -1 if it is maximised."""

    def text(self, cost: float) -> str:
        """Convert a cost to a value of the objective, and return the value as text."""
        return f"{self.sign * cost + 0.0:.3g}"

    @cached_property
    def range(self) -> float:
        """Range of the finite costs of all trials; NaN if no cost is finite."""
        finite = [
            v for c in self.curves for v in (c.finite.values.min(initial=np.inf), c.finite.values.max(initial=-np.inf))
        ]
        known = [v for v in finite if math.isfinite(v)]
        return max(known) - min(known) if known else math.nan


def read_costs(blocks: Mapping[str, CurveBlock], objective: str, *, minimize: bool, trials: int) -> ObjectiveCosts:
    """Return the objective of each trial as a cost."""
    curves = [blocks[objective].curve(i) for i in range(trials)]
    return ObjectiveCosts(objective, curves if minimize else [-c for c in curves], 1 if minimize else -1)


def find_silent_failures(
    blocks: Mapping[str, CurveBlock],
    costs: ObjectiveCosts,
    trials: Sequence[int],
    chance: float | None,
    examples: float = math.inf,
) -> dict[int, TrialEnd]:
    """Return the kind of failure for each given trial whose curves show a failure.

    chance: cost of random guessing, if known. examples: number of validation examples, infinite if unknown.
    """
    found: dict[int, TrialEnd] = {}
    for trial in trials:
        if reason := _non_finite_evidence(blocks, costs, trial):
            found[trial] = TrialEnd("diverged", reason)
    rest = [t for t in trials if t not in found and len(costs.curves[t].finite) > _MIN_PLATEAU_EVALUATIONS]
    min_gain = _min_difference(costs, examples)
    for trial in rest:
        if reason := _collapse(costs, trial, min_gain) or _joint_collapse_evidence(blocks, costs, trial):
            found[trial] = TrialEnd("diverged", reason)
    rest = [t for t in rest if t not in found]
    return found | _find_trials_on_plateaus(costs, rest, chance, _known_difference(costs, examples))


# --- losses that are not finite --------------------------------------------------------------------------------------------------


def _non_finite_evidence(blocks: Mapping[str, CurveBlock], costs: ObjectiveCosts, trial: int) -> str:
    """Return a clause that says that the objective or a loss stays non-finite to its end; empty if training continued normally."""
    curve = costs.curves[trial]
    losses = {m: b.curve(trial) for m, b in blocks.items() if m != costs.metric and _is_loss(m)}
    losses = {m: loss for m, loss in losses.items() if len(loss)}
    if not math.isfinite(curve.values[-1]):
        return "" if _training_was_finite(curve, losses) else _divergence_clause(costs.metric, curve)
    range_of_costs = costs.range
    for metric, loss in losses.items():
        tail = _count_trailing_true(~np.isfinite(loss.values))
        if not tail or (
            metric_direction.split_of(metric) not in ("train", None) and _training_was_finite(loss, losses)
        ):
            continue
        if not _training_continued(curve, int(loss.steps[-tail]), range_of_costs, single=tail == 1):
            return _divergence_clause(metric, loss)
    return ""


def _is_loss(metric: str) -> bool:
    return metric_direction.quantity(metric)[-1:] == ("loss",) and not metric_names.is_window_or_system_metric(metric)


def _training_was_finite(curve: Curve, losses: Mapping[str, Curve]) -> bool:
    """Return whether only the evaluation failed: `curve` was finite before, and the training loss is finite to its end.

    A training loss whose last point is before the last evaluation is evidence only if its next point would have come after this
    evaluation.
    """
    finite = [
        c
        for m, c in losses.items()
        if metric_direction.split_of(m) in ("train", None)
        and (c.steps[-1] >= curve.steps[-1] or c.steps[-1] + _median_interval_steps(c) > curve.steps[-1])
        and np.isfinite(c.values).all()
    ]
    return bool(np.isfinite(curve.values).any()) and bool(finite)


def _median_interval_steps(curve: Curve) -> float:
    return float(np.median(np.diff(curve.steps))) if len(curve) > 1 else 0.0


def _training_continued(curve: Curve, step: int, range_of_costs: float, *, single: bool) -> bool:
    """Return whether training continued after a loss became non-finite at `step`: the objective still improved.

    single: whether only the last logged loss is not finite; this may be a single skipped batch, unless the objective fell back
    to its start.
    """
    finite = curve.finite
    before, after = finite.values[finite.steps < step], finite.values[finite.steps >= step]
    if single:
        return not (len(before) and len(after) and after[-1] >= before[0] - 0.1 * (before[0] - before.min()))
    if not len(after):
        return False
    return bool(after.min() < min(before.min(initial=np.inf), after[0]) - _MIN_LATER_GAIN * range_of_costs)


def _divergence_clause(metric: str, curve: Curve) -> str:
    start = len(curve) - _count_trailing_true(~np.isfinite(curve.values))
    return f"{metric} is not finite from step {int(curve.steps[start]):,} on"


def _count_trailing_true(mask: BoolArray) -> int:
    """Return the number of consecutive true values at the end of the mask."""
    others = np.flatnonzero(~mask)
    return len(mask) - (int(others[-1]) + 1 if len(others) else 0)


# --- plateaus --------------------------------------------------------------------------------------------------------------------


def _collapse(costs: ObjectiveCosts, trial: int, min_gain: float) -> str:
    """Return a clause that says that the trial lost its improvement and then stayed constant; empty if it did not.

    min_gain: minimum gain that counts, because smaller ones may be chance.
    """
    curve = costs.curves[trial].finite
    first, best = float(curve.values[0]), float(curve.values.min())
    level, gain = float(curve.values[-1]), first - best
    constant = np.abs(curve.values - level) <= max(_CONSTANT * gain, 1e-12)
    length = _count_trailing_true(constant)
    if (
        length < max(_MIN_PLATEAU_EVALUATIONS, _MIN_CONSTANT_TAIL_FRACTION * len(curve))
        or not level - best >= _MIN_LOST_GAIN_FRACTION * gain > 0
    ):
        return ""
    if (
        gain < min_gain
        or gain <= _MIN_LEARNING_GAIN * costs.range
        or length <= _longest_temporary_plateau(costs.curves, level, _CONSTANT * gain)
    ):
        return ""
    step = int(curve.steps[len(curve) - length])
    return f"{costs.metric} fell back from {costs.text(best)} to the constant {costs.text(level)} at step {step:,}"


def _joint_collapse_evidence(blocks: Mapping[str, CurveBlock], costs: ObjectiveCosts, trial: int) -> str:
    """Return a clause that says that the trial's objective and training loss both lost most of their improvement; empty if they
    did not.

    A failed classifier may guess one class after another, so its accuracy need not be constant.
    """
    curve = costs.curves[trial].finite
    for metric, block in blocks.items():
        if metric_direction.quantity(metric) != ("loss",) or metric_direction.split_of(metric) not in ("train", None):
            continue
        loss = block.curve(trial).finite
        if metric == costs.metric or len(loss) <= 2 * _MIN_PLATEAU_EVALUATIONS:
            continue
        # The losses of policies and adversarial networks need not decrease, so they are weak evidence.
        share = _MIN_JOINTLY_LOST_GAIN_FRACTION if _has_fallen_clearly(loss.values) else _MIN_LOST_GAIN_FRACTION
        if (levels := _levels_of_lost_fall(loss.values, share)) is None:
            continue
        start = _cost_before_learning(costs, curve, metric, loss)
        if length := _count_lost_evaluations(curve.values, start, costs.range, share):
            lowest, end = levels
            step, best = int(curve.steps[len(curve) - length]), costs.text(float(curve.values.min()))
            level = costs.text(float(np.median(curve.values[len(curve) - length :])))
            rose = f"{metric} rose from {lowest:.3g} to {end:.3g}"
            lost = f"each lost at least {words.share(share)} of its gain"
            return f"{costs.metric} fell back from {best} to about {level} at step {step:,}, and {rose}; {lost}"
    return ""


def _has_fallen_clearly(loss: FloatArray) -> bool:
    """Return whether the training loss decreased by more than its noise before it reached its lowest level."""
    fall, noise = (
        float(loss[0] - _moving_median(loss, _MIN_PLATEAU_EVALUATIONS).min()),
        float(np.median(np.abs(np.diff(loss)))),
    )
    return fall > max(_MIN_GAIN_TO_NOISE_RATIO * noise, _MIN_LEARNING_GAIN * abs(float(loss[0])))


def _levels_of_lost_fall(loss: FloatArray, share: float) -> tuple[float, float] | None:
    """Return (lowest level, level at the end) of a training loss that lost the fraction `share` of its decrease; None if it did
    not."""
    tail = loss[-max(_MIN_PLATEAU_EVALUATIONS, int(_MIN_CONSTANT_TAIL_FRACTION * len(loss))) :]
    lowest = float(_moving_median(loss, _MIN_PLATEAU_EVALUATIONS).min())
    # The lowest point at the end of the curve is used, because losses of single batches are noisy.
    return (lowest, float(np.median(tail))) if tail.min() >= lowest + share * (loss[0] - lowest) else None


def _cost_before_learning(costs: ObjectiveCosts, curve: Curve, metric: str, loss: Curve) -> float:
    """Return the cost before learning: the first cost, or the first training loss if it measures the same quantity as the
    objective."""
    first = float(curve.values[0])
    if metric_direction.quantity(costs.metric) != metric_direction.quantity(metric) or loss.steps[0] >= curve.steps[0]:
        return first
    return max(first, float(loss.values[0]))


def _count_lost_evaluations(values: FloatArray, start: float, range_of_costs: float, share: float) -> int:
    """Return the number of final evaluations at which the fraction `share` of the improvement over `start` was lost; 0 if it
    was not lost."""
    gain = start - float(values.min())
    length = _count_trailing_true(values >= values.min() + share * gain)
    if (
        length < max(_MIN_PLATEAU_EVALUATIONS, _MIN_CONSTANT_TAIL_FRACTION * len(values))
        or gain <= _MIN_LEARNING_GAIN * range_of_costs
    ):
        return 0
    return 0 if gain < _MIN_GAIN_TO_NOISE_RATIO * float(np.median(np.abs(np.diff(values[-length:])))) else length


def _moving_median(values: FloatArray, width: int) -> FloatArray:
    return np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)


def _longest_temporary_plateau(curves: Sequence[Curve], level: float, error: float) -> int:
    """Return the maximum number of consecutive evaluations that a trial spent at `level` before it left this level.

    For example, the success rate of a policy may be zero for some time. A trial that has left a level once may leave it a
    second time.
    """
    longest = 0
    for curve in curves:
        away = np.flatnonzero(np.abs(curve.finite.values - level) > max(error, 1e-12))
        longest = max(longest, int(np.diff(away, prepend=-1).max(initial=1)) - 1)
    return longest


def _min_difference(costs: ObjectiveCosts, examples: float) -> float:
    """Return the minimum difference between two accuracies that is detectable with this number of validation examples; 0 for other
    objectives.

    If the number is unknown, the smallest difference between any two logged accuracies counts as one example, provided that all
    accuracies are multiples of it. A few accuracies can be multiples by chance, so the result is limited to a share of the range.
    """
    if math.isfinite(examples) or "accuracy" not in metric_direction.quantity(costs.metric):
        return _known_difference(costs, examples)
    values = np.unique(np.concatenate([c.finite.values for c in costs.curves] or [np.empty(0)]))
    gaps = np.diff(values)
    gaps = gaps[gaps > _MIN_GAP * np.abs(values).max(initial=0.0)]
    if not len(gaps):
        return 0.0
    multiples = values * round(_full_accuracy(values) / gaps.min()) / _full_accuracy(values)
    if np.abs(multiples - np.round(multiples)).max() > _MAX_GAP_REMAINDER:
        return 0.0
    return min(_MIN_EXAMPLES * float(gaps.min()), _MAX_GUESSED_DIFFERENCE * costs.range)


def _known_difference(costs: ObjectiveCosts, examples: float) -> float:
    """Return the minimum difference between two accuracies that is detectable with this number of validation examples; 0 for other
    objectives, or if the number is unknown.
    """
    if "accuracy" not in metric_direction.quantity(costs.metric):
        return 0.0
    values = np.concatenate([c.finite.values for c in costs.curves] or [np.empty(0)])
    return _MIN_EXAMPLES / examples * _full_accuracy(values)


def _full_accuracy(accuracies: FloatArray) -> float:
    """Return the accuracy of a perfect model: 1, or 100 if the accuracies are percentages."""
    return 1.0 if float(np.abs(accuracies).max(initial=0.0)) <= 1 + 1e-6 else 100.0


def _find_trials_on_plateaus(
    costs: ObjectiveCosts, trials: Sequence[int], chance: float | None, min_distance: float
) -> dict[int, TrialEnd]:
    """Return the trials that never left a degenerate plateau: a level of random guessing, a level that several trials share, or an
    exact constant.

    min_distance: minimum distance of a plateau from the best result.
    """
    results = [float(costs.curves[t].finite.values.min()) for t in trials]
    if not results:
        return {}
    best = min(results)
    levels = {t: level for t in trials if math.isfinite(level := _flat_level(costs.curves[t].finite.values, best))}
    known = _chance_levels(costs) if chance is None else np.array([chance])
    found: dict[int, TrialEnd] = {}
    stays: dict[float, int] = {}
    for trial, level in levels.items():
        distance = level - best
        if distance < min_distance:
            continue
        shared = [t for t, other in levels.items() if t != trial and abs(other - level) <= 1e-3 * distance]
        exact = np.ptp(_values_in_last_half(costs.curves[trial].finite.values)) <= 1e-9 * abs(level)
        guess = (
            _is_chance_level(level, known) if chance is None else abs(level - chance) <= _MIN_LEARNING_GAIN * distance
        )
        if not (shared or exact or guess):
            continue
        # Learning may simply start late: the success rate of a policy is zero until the policy first succeeds.
        key = round(level / distance, 3)
        if key not in stays:
            stays[key] = _longest_temporary_plateau(
                _curves_below(costs, level - _MIN_LEARNING_GAIN * distance), level, _FLAT * distance
            )
        if 2 * stays[key] >= len(costs.curves[trial].finite):
            continue
        like = " like other trials" if shared else ""
        found[trial] = TrialEnd("not_learned", f"{costs.metric} stays at {costs.text(level)} from the start{like}")
    if len(found) > _MAX_PLATEAU_TRIALS_FRACTION * len(trials):
        return {}
    return {**found, **_find_trials_no_better_than_plateau(costs, trials, results, found, levels)}


def _find_trials_no_better_than_plateau(
    costs: ObjectiveCosts,
    trials: Sequence[int],
    results: Sequence[float],
    plateau_trials: Mapping[int, TrialEnd],
    levels: Mapping[int, float],
) -> dict[int, TrialEnd]:
    """Return noisier trials that, after the same number of steps, are no better than trials that never left their initial
    level.

    results: lowest cost of each trial. plateau_trials: trials that never left their level, which is in `levels`.
    """
    best, more = min(results), dict[int, TrialEnd]()
    limit = min((levels[t] - _MIN_LEARNING_GAIN * (levels[t] - best) for t in plateau_trials), default=math.inf)
    steps = max((costs.curves[t].finite.steps[-1] for t in plateau_trials), default=0)
    for trial, result in zip(trials, results, strict=True):
        curve = costs.curves[trial].finite
        if (
            trial not in plateau_trials
            and result >= limit
            and curve.steps[-1] >= steps
            and not _has_curve_fallen(curve.values, limit - best)
        ):
            more[trial] = TrialEnd(
                "not_learned", f"{costs.metric} gets no better than in trials that never leave a plateau"
            )
    return more


def _has_curve_fallen(values: FloatArray, distance: float) -> bool:
    """Return whether the later half of the curve is clearly below its first quarter, so that the trial has learned something."""
    start = float(np.median(values[: max(len(values) // 4, 1)]))
    return start - float(np.median(_values_in_last_half(values))) > _MIN_LEARNING_GAIN * distance


def _curves_below(costs: ObjectiveCosts, max_cost: float) -> list[Curve]:
    """Return the curves whose last half is mostly below this cost; a few low noisy values do not show that a trial left a
    level."""
    known = [c for c in costs.curves if len(c.finite)]
    return [c for c in known if float(np.median(_values_in_last_half(c.finite.values))) < max_cost]


def _flat_level(values: FloatArray, best: float) -> float:
    """Return the level of a curve whose range is small relative to its distance from the best result `best`; NaN for other
    curves."""
    half = _values_in_last_half(values)
    level = float(np.median(half))
    distance = level - best
    if len(half) < _MIN_PLATEAU_EVALUATIONS or distance <= 0 or np.ptp(half) > _FLAT * distance:
        return math.nan
    return level if values[0] - values.min() <= _MIN_LEARNING_GAIN * distance else math.nan


def _values_in_last_half(values: FloatArray) -> FloatArray:
    return values[len(values) // 2 :]


def _chance_levels(costs: ObjectiveCosts) -> FloatArray:
    """Return the costs of random guessing among 2, 3, ... classes, derived from the objective's name; empty if the name does
    not determine them."""
    classes = np.arange(2, _MAX_CLASSES + 1)
    quantity = metric_direction.quantity(costs.metric)
    if "loss" in quantity or "entropy" in quantity:
        return np.log(classes)
    if {"accuracy", "acc1", "top1"} & set(quantity):
        return -1.0 / classes
    return 1 - 1.0 / classes if "error" in quantity else np.empty(0)


def _is_chance_level(level: float, known_chance: FloatArray) -> bool:
    if len(known_chance) < 2:
        return False
    at = int(np.argmin(np.abs(known_chance - level)))
    gap = float(np.abs(np.diff(known_chance))[min(at, len(known_chance) - 2)])
    return bool(abs(known_chance[at] - level) <= _MAX_CHANCE_LEVEL_DISTANCE * gap)
