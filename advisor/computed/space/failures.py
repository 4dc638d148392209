"""Finds the failed trials of a study and the kind of each failure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.model.first_rewards import cost_before_training, have_same_quantity
from advisor.model.space import BoolArray, FloatArray
from advisor.model.study import Study

MIN_LOSS_RISE = 0.1
"""A failed training loss rises, from start to end, by this share of the largest fall of any complete trial's loss."""


@dataclass(frozen=True)
class FailureMasks:
    """Masks of the failed trials, each over all trials; running trials and those without data did not fail."""

    diverged: BoolArray
    """They ended with a non-finite objective or loss, or lost what they had learned, or had before training."""
    crashed: BoolArray
    """They crashed or ran out of memory."""
    out_of_memory: BoolArray
    """Crashed trials whose error reports it."""
    stuck: BoolArray
    """They stayed on a degenerate plateau, or never beat their first evaluation while their training loss rose or their result
    was an outlier."""

    @property
    def any(self) -> BoolArray:
        return self.diverged | self.crashed | self.stuck


@computed
def failure_masks(study: Study) -> FailureMasks:
    count = len(study.trials)
    diverged = np.array([t.status == "diverged" for t in study.trials], dtype=np.bool_)
    crashed = np.array([t.status == "infeasible" for t in study.trials], dtype=np.bool_)
    memory = np.array([t.ran_out_of_memory for t in study.trials], dtype=np.bool_)
    diverged |= study.ended & ~crashed & ~np.isfinite(study.costs)
    objective = study.spec.objective
    comparable = objective.direction == "maximize" and have_same_quantity(study.signals.get("policy_reward"), objective.metric)
    starts, rises, drops = np.full(count, np.nan), np.zeros(count), np.zeros(count)
    for trial in study.trials:
        curve = study.cost_curve(trial).finite
        if len(curve) > 1:
            reward = study.curve(trial, "policy_reward").finite if comparable else None
            starts[trial.index] = cost_before_training(curve, reward)
        rises[trial.index], drops[trial.index] = measure_rise_and_fall(study.curve(trial, "train_loss").values)
    # Pruned trials might have learned later, so they are left out.
    drop = np.max(drops[study.comparable], initial=0.0)
    worse = ~(rises <= MIN_LOSS_RISE * drop) & (rises != 0)
    stuck = np.array([t.status == "not_learned" for t in study.trials], dtype=np.bool_)
    stuck |= stuck_trials(study.costs, starts, study.comparable, worse)
    return FailureMasks(diverged, crashed, memory, stuck)


def measure_rise_and_fall(losses: FloatArray) -> tuple[float, float]:
    """Return (rise to the median of the last tenth, largest fall) of a training loss, (n,), from its first value. The rise is
    inf if the loss ends non-finite; (0, 0) for fewer than 10 points."""
    if len(losses) < 10 or not np.isfinite(losses[0]):
        return 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        rise = float(np.median(losses[-(len(losses) // 10) :]) - losses[0])
        fall = float(losses[0] - np.nanmin(losses))
    return (rise if np.isfinite(rise) else np.inf), (fall if np.isfinite(fall) else 0.0)


def stuck_trials(costs: FloatArray, starts: FloatArray, feasible: BoolArray, worse: BoolArray) -> BoolArray:
    """Return a mask, (n,), of the trials that learned nothing; all False if fewer than 4 trials learned.

    costs, starts: best and first cost, (n,), NaN if unknown. worse: mask of the trials whose training loss ended well above its
    start. A stuck trial does not improve on its own first evaluation, or on the highest one of the study: if most learning
    happens before the first evaluation, noise looks like a gain. It is also in `worse`, or its cost exceeds all costs of trials
    that learned by more than their range, so gradually degrading results do not count.
    """
    none = np.zeros(len(costs), dtype=np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        gain = starts - costs
        is_known = feasible & np.isfinite(starts)
        highest = np.max(starts, where=is_known, initial=-np.inf)
        # A gain counts only above 2 % of the best one: first evaluations are noisy, and the minimum of many looks like a gain.
        past_own = gain > 0.02 * np.max(gain, where=is_known, initial=0)
        past_any = highest - costs > 0.02 * np.max(highest - costs, where=is_known, initial=0)
        no_gain, learned = is_known & ~(past_own & past_any), is_known & past_own & past_any
        if learned.sum() < 4 or not no_gain.any():
            return none
        worst = costs[learned].max()
        spread = worst - costs[learned].min()
        return np.asarray(no_gain & (worse | (costs - worst > spread)), dtype=np.bool_)
