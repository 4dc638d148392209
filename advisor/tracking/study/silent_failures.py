"""Finds trials whose process ended normally, but whose curves show a failure. A trial diverged if a loss stays non-finite to
the end, if the objective fell back to a constant, if objective and training loss lost most of their improvement, or if a
policy's reward fell below its start. It learned nothing if it stays on a plateau (`plateaus`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.reinforcement.policy import MIN_SIGNAL_POINTS, initial_and_late_reward
from advisor.contract import metric_direction
from advisor.model import words
from advisor.model.space import BoolArray, FloatArray
from advisor.model.study import Curve, CurveBlocks, TrialStatus
from advisor.tracking.study import metric_names
from advisor.tracking.study.objective_costs import ObjectiveCosts, min_detectable_difference, min_known_difference
from advisor.tracking.study.plateaus import (
    MIN_LEARNED_IMPROVEMENT,
    MIN_PLATEAU_EVALUATIONS,
    find_trials_on_plateaus,
    has_curve_fallen,
    longest_temporary_plateau,
)

_MIN_CONSTANT_TAIL_FRACTION = 0.1
"""Minimum share of evaluations at the end that must be constant in a collapse."""
_MAX_CONSTANT_DISTANCE = 0.01
"""Maximum distance of equal values, as a share of the trial's earlier improvement. Our choice."""
_MIN_LOST_GAIN_FRACTION = 0.8
"""Minimum share of the improvement in the objective that a collapse destroys. Our choice."""
_MIN_JOINTLY_LOST_GAIN_FRACTION = 0.5
"""Minimum share that a collapse destroys if the training loss clearly fell before."""
_MIN_LATER_IMPROVEMENT = 0.05
"""Minimum improvement after a non-finite loss, as a share of the objective's range, that shows that training continued."""
_MIN_GAIN_TO_NOISE_RATIO = 5.0
"""Minimum lost improvement, in median differences between successive later evaluations. Our choice."""

_MAX_FALSE_ALARM_RATE = 0.05
"""Maximum share of studies in which noise alone makes a policy's reward fall below its start."""


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """End status of a trial, and a clause with the evidence, empty if tags or the process stated the status."""

    status: TrialStatus
    reason: str = ""


def find_silent_failures(
    blocks: CurveBlocks, costs: ObjectiveCosts, trials: Sequence[int], chance: float | None, examples: float = math.inf
) -> dict[int, TrialEnd]:
    """Return the failures of trials that curves show. chance: cost of guessing. examples: validation examples."""
    ends: dict[int, TrialEnd] = {}
    for trial in trials:
        if reason := _non_finite_evidence(blocks, costs, trial):
            ends[trial] = TrialEnd("diverged", reason)
    candidates = [t for t in trials if t not in ends and len(costs.curves[t].finite) > MIN_PLATEAU_EVALUATIONS]
    min_gain = min_detectable_difference(costs, examples)
    for trial in candidates:
        if reason := _collapse_clause(blocks, costs, trial, min_gain) or _joint_collapse_evidence(blocks, costs, trial):
            ends[trial] = TrialEnd("diverged", reason)
    ends |= {t: TrialEnd("diverged", reason) for t, reason in _fallen_rewards(costs, candidates).items() if t not in ends}
    candidates = [t for t in candidates if t not in ends]
    plateau_trials = find_trials_on_plateaus(costs, candidates, chance, min_known_difference(costs, examples))
    return ends | {trial: TrialEnd("not_learned", reason) for trial, reason in plateau_trials.items()}


def _non_finite_evidence(blocks: CurveBlocks, costs: ObjectiveCosts, trial: int) -> str:
    curve = costs.curves[trial]
    other_names = [m for m in blocks if m != costs.metric and not metric_names.is_window_or_system_metric(m)]
    names = [m for m in other_names if metric_direction.quantity_words(m)[-1:] == ("loss",)]
    losses = {m: loss for m in names if len(loss := blocks[m].curve(trial))}
    if not math.isfinite(curve.values[-1]):
        return "" if _was_training_finite(curve, losses) else _divergence_clause(costs.metric, curve)
    for metric, loss in losses.items():
        tail = _count_trailing_true(~np.isfinite(loss.values))
        if not tail or (metric_direction.split_of_metric(metric) not in ("train", None) and _was_training_finite(loss, losses)):
            continue
        if not _has_training_continued(curve, int(loss.steps[-tail]), costs.cost_range, single=tail == 1):
            return _divergence_clause(metric, loss)
    return ""


def _was_training_finite(curve: Curve, losses: Mapping[str, Curve]) -> bool:
    """Return whether only the evaluation failed: `curve` was finite before, and the training loss is finite to its end. It may
    end before the last evaluation if its next point would have come after it."""
    if not np.isfinite(curve.values).any():
        return False
    train_losses = (c for m, c in losses.items() if metric_direction.split_of_metric(m) in ("train", None))
    finite_losses = (c for c in train_losses if np.isfinite(c.values).all())
    # Without another interval, the next point comes after the last one.
    next_steps = (c.steps[-1] + (np.median(np.diff(c.steps)) if len(c) > 1 else 0.5) for c in finite_losses)
    return any(step > curve.steps[-1] for step in next_steps)


def _has_training_continued(curve: Curve, step: int, range_of_costs: float, *, single: bool) -> bool:
    """Return whether the objective improved after a loss became non-finite at `step`. single: whether only the last logged loss
    is, which a single skipped batch can cause, unless the objective also fell back to its first value."""
    finite_curve = curve.finite
    before, after = finite_curve.values[finite_curve.steps < step], finite_curve.values[finite_curve.steps >= step]
    if single:
        return not (len(before) and len(after) and after[-1] >= before[0] - 0.1 * (before[0] - before.min()))
    if not len(after):
        return False
    return bool(after.min() < min(before.min(initial=np.inf), after[0]) - _MIN_LATER_IMPROVEMENT * range_of_costs)


def _divergence_clause(metric: str, curve: Curve) -> str:
    start = len(curve) - _count_trailing_true(~np.isfinite(curve.values))
    return f"{metric} is not finite from step {int(curve.steps[start]):,} on"


def _count_trailing_true(mask: BoolArray) -> int:
    false_indices = np.flatnonzero(~mask)
    return len(mask) - (int(false_indices[-1]) + 1 if len(false_indices) else 0)


def _collapse_clause(blocks: CurveBlocks, costs: ObjectiveCosts, trial: int, min_gain: float) -> str:
    """Return a clause if the trial lost its improvement and then stayed constant. A gain below min_gain may be chance. If the
    training loss fell and stayed low, the trial did not diverge: it may only have learned the frequencies of the classes. The
    loss of a policy shows nothing."""
    curve = costs.curves[trial].finite
    first, best = costs.start_cost(trial), float(curve.values.min())
    level, gain = float(curve.values[-1]), first - best
    is_constant = np.abs(curve.values - level) <= max(_MAX_CONSTANT_DISTANCE * gain, 1e-12)
    length = _count_trailing_true(is_constant)
    if (
        length < max(MIN_PLATEAU_EVALUATIONS, _MIN_CONSTANT_TAIL_FRACTION * len(curve))
        or not level - best >= _MIN_LOST_GAIN_FRACTION * gain > 0
        or gain < min_gain
        or gain <= MIN_LEARNED_IMPROVEMENT * costs.cost_range
        or length <= longest_temporary_plateau(costs.curves, level, _MAX_CONSTANT_DISTANCE * gain)
        or (not costs.rewards and _has_falling_train_loss(blocks, costs, trial))
    ):
        return ""
    step = int(curve.steps[len(curve) - length])
    values = f"from {costs.objective_text(best)} to the constant {costs.objective_text(level)}"
    return f"{costs.metric} fell back {values} at step {step:,}"


def _joint_collapse_evidence(blocks: CurveBlocks, costs: ObjectiveCosts, trial: int) -> str:
    """Return a clause if objective and training loss both lost most of their improvement. A failed classifier may guess one
    class after another, so its accuracy need not be constant."""
    curve = costs.curves[trial].finite
    for metric, loss in _train_losses(blocks, costs, trial):
        # The losses of policies and adversarial networks need not decrease, so they are weak evidence.
        share = _MIN_JOINTLY_LOST_GAIN_FRACTION if _has_fallen_clearly(loss.values) else _MIN_LOST_GAIN_FRACTION
        if (levels := _lost_loss_levels(loss.values, share)) is None:
            continue
        start = _cost_before_learning(costs, trial, metric, loss)
        if length := _count_lost_evaluations(curve.values, start, costs.cost_range, share):
            lowest, end = levels
            step, best = int(curve.steps[len(curve) - length]), costs.objective_text(float(curve.values.min()))
            level = costs.objective_text(float(np.median(curve.values[len(curve) - length :])))
            rise_text = f"{metric} rose from {lowest:.3g} to {end:.3g}"
            loss_text = f"each lost at least {words.share(share)} of its gain"
            return f"{costs.metric} fell back from {best} to about {level} at step {step:,}, and {rise_text}; {loss_text}"
    return ""


def _has_falling_train_loss(blocks: CurveBlocks, costs: ObjectiveCosts, trial: int) -> bool:
    losses = (loss.values for _, loss in _train_losses(blocks, costs, trial))
    return any(_has_fallen_clearly(v) and _lost_loss_levels(v, _MIN_JOINTLY_LOST_GAIN_FRACTION) is None for v in losses)


def _train_losses(blocks: CurveBlocks, costs: ObjectiveCosts, trial: int) -> Iterator[tuple[str, Curve]]:
    """Yield the name and the finite points of each training loss with enough points to judge."""
    for metric, block in blocks.items():
        of_training = metric_direction.split_of_metric(metric) in ("train", None)
        if metric == costs.metric or metric_direction.quantity_words(metric) != ("loss",) or not of_training:
            continue
        loss = block.curve(trial).finite
        if len(loss) > 2 * MIN_PLATEAU_EVALUATIONS:
            yield metric, loss


def _fallen_rewards(costs: ObjectiveCosts, trials: Sequence[int]) -> dict[int, str]:
    """Return a clause for each policy that earns less than at its start: the training reward fell by more than noise (Holm's
    correction for the number of trials), and the objective neither exceeded the initial reward nor improved after the first
    step."""
    reward_falls: list[tuple[float, int, str]] = []
    testable_trials = [t for t in trials if costs.rewards and len(costs.rewards[t]) >= MIN_SIGNAL_POINTS]
    for trial in testable_trials:
        reward, curve = costs.rewards[trial], costs.curves[trial].finite
        first, late = initial_and_late_reward(reward.values)
        after_start = curve.values[curve.steps > reward.steps[0]]
        is_large_fall = first.mean - late.mean > MIN_LEARNED_IMPROVEMENT * costs.cost_range
        if is_large_fall and (after_start >= -first.mean).all() and not has_curve_fallen(curve.values, costs.cost_range):
            text = f"the training reward fell from {first.mean:.3g} to {late.mean:.3g}"
            reward_falls.append((first.p_value_above_other(late), trial, text))
    reward_falls.sort()
    is_significant = [p <= _MAX_FALSE_ALARM_RATE / (len(testable_trials) - i) for i, (p, _, _) in enumerate(reward_falls)]
    return {trial: text for _, trial, text in reward_falls[: [*is_significant, False].index(False)]}


def _has_fallen_clearly(loss: FloatArray) -> bool:
    fall, noise = (float(loss[0] - _moving_median(loss).min()), float(np.median(np.abs(np.diff(loss)))))
    return fall > max(_MIN_GAIN_TO_NOISE_RATIO * noise, MIN_LEARNED_IMPROVEMENT * abs(float(loss[0])))


def _lost_loss_levels(loss: FloatArray, share: float) -> tuple[float, float] | None:
    """Return (lowest level, level at the end) of a training loss that lost the share `share` of its decrease, if it did."""
    last_losses = loss[-max(MIN_PLATEAU_EVALUATIONS, int(_MIN_CONSTANT_TAIL_FRACTION * len(loss))) :]
    minimum = float(_moving_median(loss).min())
    # The lowest of the last points is used, because losses of single batches are noisy.
    return (minimum, float(np.median(last_losses))) if last_losses.min() >= minimum + share * (loss[0] - minimum) else None


def _cost_before_learning(costs: ObjectiveCosts, trial: int, metric: str, loss: Curve) -> float:
    """Return the first cost, or the first training loss if it measures the same quantity."""
    first_cost = costs.start_cost(trial)
    if (
        metric_direction.quantity_words(costs.metric) != metric_direction.quantity_words(metric)
        or loss.steps[0] >= costs.curves[trial].finite.steps[0]
    ):
        return first_cost
    return max(first_cost, float(loss.values[0]))


def _count_lost_evaluations(values: FloatArray, start: float, range_of_costs: float, share: float) -> int:
    """Return the number of final evaluations without the share `share` of the improvement over `start`."""
    gain = start - float(values.min())
    length = _count_trailing_true(values >= values.min() + share * gain)
    if (
        length < max(MIN_PLATEAU_EVALUATIONS, _MIN_CONSTANT_TAIL_FRACTION * len(values))
        or gain <= MIN_LEARNED_IMPROVEMENT * range_of_costs
    ):
        return 0
    return 0 if gain < _MIN_GAIN_TO_NOISE_RATIO * float(np.median(np.abs(np.diff(values[-length:])))) else length


def _moving_median(values: FloatArray) -> FloatArray:
    return np.median(np.lib.stride_tricks.sliding_window_view(values, MIN_PLATEAU_EVALUATIONS), axis=1)
