"""Finds the failed trials of a study and the kind of each failure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.model.first_rewards import cost_before_training, have_same_quantity
from advisor.model.space import BoolArray, FloatArray
from advisor.model.study import Study

MIN_LOSS_RISE = 0.1
"""Minimum rise of a failed trial's training loss from start to end, as a share of the largest fall of any complete trial's loss."""


@dataclass(frozen=True)
class FailureMasks:
    """Masks of the failed trials, each over all trials of the study. Running trials and trials without data did not fail."""

    diverged: BoolArray
    """Trials that ended with a non-finite objective or loss, or worse than they began, or that lost what they had learned."""
    crashed: BoolArray
    """Trials that crashed or ran out of memory."""
    out_of_memory: BoolArray
    """Crashed trials whose error reports that they ran out of memory."""
    stuck: BoolArray
    """Trials on a degenerate plateau, or that never improved while their training loss rose or their result was an outlier."""

    @property
    def has_failed(self) -> BoolArray:
        return self.diverged | self.crashed | self.stuck


@computed
def failure_masks(study: Study) -> FailureMasks:
    trial_count = len(study.trials)
    has_diverged = np.array([t.status == "diverged" for t in study.trials], dtype=np.bool_)
    has_crashed = np.array([t.status == "infeasible" for t in study.trials], dtype=np.bool_)
    out_of_memory = np.array([t.ran_out_of_memory for t in study.trials], dtype=np.bool_)
    has_diverged |= study.ended & ~has_crashed & ~np.isfinite(study.costs)
    objective = study.spec.objective
    has_reward = objective.direction == "maximize" and have_same_quantity(study.signals.get("policy_reward"), objective.metric)
    starts, rises, drops = np.full(trial_count, np.nan), np.zeros(trial_count), np.zeros(trial_count)
    for trial in study.trials:
        curve = study.cost_curve(trial).finite
        if len(curve) > 1:
            reward = study.curve(trial, "policy_reward").finite if has_reward else None
            starts[trial.index] = cost_before_training(curve, reward)
        rises[trial.index], drops[trial.index] = measure_rise_and_fall(study.curve(trial, "train_loss").values)
    # Pruned trials might have learned later, so the largest drop ignores them.
    largest_drop = np.max(drops[study.comparable], initial=0.0)
    does_loss_rise = ~(rises <= MIN_LOSS_RISE * largest_drop) & (rises != 0)
    is_stuck = np.array([t.status == "not_learned" for t in study.trials], dtype=np.bool_)
    is_stuck |= stuck_trials(study.costs, starts, study.comparable, does_loss_rise)
    return FailureMasks(has_diverged, has_crashed, out_of_memory, is_stuck)


def measure_rise_and_fall(losses: FloatArray) -> tuple[float, float]:
    """Return (rise, fall) of a training loss, shape (n,): from its first value to the median of its last tenth, and to its
    minimum. The rise is inf if the loss ends non-finite. Return (0, 0) for fewer than 10 points."""
    if len(losses) < 10 or not np.isfinite(losses[0]):
        return 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        rise_to_end = float(np.median(losses[-(len(losses) // 10) :]) - losses[0])
        largest_fall = float(losses[0] - np.nanmin(losses))
    return (rise_to_end if np.isfinite(rise_to_end) else np.inf), (largest_fall if np.isfinite(largest_fall) else 0.0)


def stuck_trials(costs: FloatArray, initial_costs: FloatArray, feasible: BoolArray, does_loss_rise: BoolArray) -> BoolArray:
    """Return a mask, shape (n,), of the trials that learned nothing; all False if fewer than 4 trials learned.

    costs, initial_costs: best and first cost of each trial, shape (n,), NaN if unknown. does_loss_rise: mask of the trials whose
    training loss ended well above its first value. A stuck trial meets two conditions. First, it does not improve on its first
    evaluation or on the study's highest first evaluation; trials that learn before their first evaluation need the second
    comparison. Second, its training loss rises, or its cost exceeds the costs of all trials that learned by more than their range.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        improvement = initial_costs - costs
        is_known = feasible & np.isfinite(initial_costs)
        highest_start = np.max(initial_costs, where=is_known, initial=-np.inf)
        gains = highest_start - costs
        # Evaluations are noisy, so the minimum of many looks like an improvement. Ignore up to 2 % of the largest improvement.
        beats_own_start = improvement > 0.02 * np.max(improvement, where=is_known, initial=0)
        beats_highest_start = gains > 0.02 * np.max(gains, where=is_known, initial=0)
        learned = is_known & beats_own_start & beats_highest_start
        no_gain = is_known & ~learned
        if learned.sum() < 4 or not no_gain.any():
            return np.zeros(len(costs), dtype=np.bool_)
        highest_learned = costs[learned].max()
        learned_range = highest_learned - costs[learned].min()
        return np.asarray(no_gain & (does_loss_rise | (costs - highest_learned > learned_range)), dtype=np.bool_)
