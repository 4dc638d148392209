"""Finds the failed trials of a study and the kind of each failure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.model.space import BoolArray, FloatArray
from advisor.model.study import Study

MATERIAL = 0.1
"""A rise of the training loss from start to end counts as failure if it is at least this share of the largest fall of any
complete trial's loss."""


@dataclass(frozen=True)
class Failures:
    """Masks of the failed trials, one for each kind of failure, shape (number of trials,). Trials that are still running or
    have no data do not count as failed."""

    diverged: BoolArray
    """Trials that ended with a non-finite objective or loss."""
    crashed: BoolArray
    """Trials that crashed or ran out of memory."""
    out_of_memory: BoolArray
    """Crashed trials whose error reports that memory ran out."""
    stuck: BoolArray
    """Trials that learned nothing: they stayed on a degenerate plateau, or never beat their first evaluation while their
    training loss rose or their result was an outlier."""

    @property
    def any(self) -> BoolArray:
        return self.diverged | self.crashed | self.stuck


@computed
def failures(study: Study) -> Failures:
    count = len(study.trials)
    diverged = np.array([t.status == "diverged" for t in study.trials], dtype=np.bool_)
    crashed = np.array([t.status == "infeasible" for t in study.trials], dtype=np.bool_)
    memory = np.array([t.ran_out_of_memory for t in study.trials], dtype=np.bool_)
    diverged |= study.ended & ~crashed & ~np.isfinite(study.costs)
    starts, rises, drops = np.full(count, np.nan), np.zeros(count), np.zeros(count)
    for trial in study.trials:
        curve = study.cost_curve(trial).finite
        if len(curve) > 1:
            starts[trial.index] = curve.values[0]
        rises[trial.index], drops[trial.index] = measure_rise_and_fall(study.curve(trial, "train_loss").values)
    # Leave out pruned trials, because they might have learned later.
    drop = np.max(drops[study.comparable], initial=0.0)
    worse = ~(rises <= MATERIAL * drop) & (rises != 0)
    stuck = np.array([t.status == "not_learned" for t in study.trials], dtype=np.bool_)
    stuck |= stuck_trials(study.costs, starts, study.comparable, worse)
    return Failures(diverged, crashed, memory, stuck)


def measure_rise_and_fall(losses: FloatArray) -> tuple[float, float]:
    """Return (rise, largest fall) of a training loss (n,), relative to its first value.

    The rise leads from the first value to the median of the last tenth of the loss; inf if the loss ends non-finite. Return (0,
    0) for a loss with fewer than 10 points.
    """
    if len(losses) < 10 or not np.isfinite(losses[0]):
        return 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        rise = float(np.median(losses[-(len(losses) // 10) :]) - losses[0])
        fall = float(losses[0] - np.nanmin(losses))
    return (rise if np.isfinite(rise) else np.inf), (fall if np.isfinite(fall) else 0.0)


def stuck_trials(costs: FloatArray, starts: FloatArray, feasible: BoolArray, worse: BoolArray) -> BoolArray:
    """Return a mask, shape (n,), of the trials that learned nothing.

    costs, starts: best and first cost of each trial, shape (n,), NaN if unknown. worse: mask (n,) of trials whose training loss
    ended well above its start. A stuck trial is no better than its own first evaluation or than the highest first evaluation of
    the study. The comparison with the highest first evaluation is needed, because noise looks like a gain if most learning
    happens before the first evaluation. In addition, the trial is in `worse`, or a gap separates its cost from the costs of all
    trials that learned. The gap must be wider than the range of these costs, so gradually degrading results do not count. The
    result is empty if fewer than 4 trials learned.
    """
    none = np.zeros(len(costs), dtype=np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        gain = starts - costs
        is_known = feasible & np.isfinite(starts)
        highest = np.max(starts, where=is_known, initial=-np.inf)
        # A gain counts if it is above 2 % of the best gain, because first evaluations are noisy and the minimum of many noisy
        # values looks like progress.
        past_own = gain > 0.02 * np.max(gain, where=is_known, initial=0)
        past_any = highest - costs > 0.02 * np.max(highest - costs, where=is_known, initial=0)
        no_gain, learned = is_known & ~(past_own & past_any), is_known & past_own & past_any
        if learned.sum() < 4 or not no_gain.any():
            return none
        worst = costs[learned].max()
        spread = worst - costs[learned].min()
        return np.asarray(no_gain & (worse | (costs - worst > spread)), dtype=np.bool_)
