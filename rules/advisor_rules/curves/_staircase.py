"""Falls of the training loss at the starts of epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray, IntArray
from advisor.model.study import Study, Trial

_MIN_EPOCH_STEPS = 20
"""Minimum number of steps per epoch; with 20 steps, each compared part of an epoch has three losses."""
_COMPARED_EPOCH_SHARE = 0.15
"""Length of the parts of an epoch that are compared, as a share of the epoch."""
_MAX_LEARNING_RATE_CHANGE = 0.01
"""Maximum relative change of the learning rate around the start of an epoch at which the learning rate counts as constant."""
_MIN_EPOCH_END_NOISE = 0.3
"""Minimum noise of the loss at the end of epochs, as a share of the noise at their start. If the logged loss is the mean over
the epoch so far, its noise at the end is much lower.
"""


@dataclass(frozen=True, slots=True)
class EpochFalls:
    """Falls of one trial's training loss at the starts of epochs."""

    trial: Trial
    steps_per_epoch: float
    """Steps per epoch."""
    loss_falls: FloatArray
    """Fall at each start of an epoch, in units of the loss, shape (epochs - 1,)."""
    excess_falls: FloatArray
    """Each fall minus the mean of the falls in the middle of the epochs before and after it, shape (epochs - 1,)."""
    relative_excess: FloatArray
    """Excess fall as a share of the mean loss just before each start of an epoch, shape (epochs - 1,)."""


def measure_epoch_falls(study: Study, trial: Trial) -> EpochFalls | None:
    """Return the falls of a trial's loss; None if its epochs are unknown, too few or too short, or if the learning rate or the
    logging causes the falls.

    Epochs at whose start the learning rate changes in a step are left out. Logged losses that are the mean over the epoch so
    far are left out, too.
    """
    epoch, curve = trial.fact("steps_per_epoch"), study.curve(trial, "train_loss").finite
    if study.unit != "step" or not epoch >= _MIN_EPOCH_STEPS or not len(curve) or trial.facts.get("shuffle") == "false":
        return None
    width = _COMPARED_EPOCH_SHARE * epoch
    starts = np.arange(1, math.floor((curve.steps[-1] + 1) / epoch + 0.5)) * epoch
    starts = starts[starts + epoch / 2 + width <= curve.steps[-1] + 1]
    steady = [s for s in starts if not _changes_learning_rate_at(study, trial, s, epoch)]
    falls = np.array([_loss_fall_at(curve.steps, curve.values, s, width) for s in steady])
    middles = [[_loss_fall_at(curve.steps, curve.values, s + side * epoch / 2, width) for side in (-1, 1)] for s in steady]
    control = np.array(middles).reshape(-1, 2).mean(axis=1)
    levels = np.array([_mean_loss_between(curve.steps, curve.values, s - width, s) for s in steady])
    known = np.isfinite(falls) & np.isfinite(control) & (levels > 0)
    if known.sum() < 2 or _is_running_mean(curve.steps, curve.values, epoch):
        return None
    excess = falls[known] - control[known]
    return EpochFalls(trial, epoch, falls[known], excess, excess / levels[known])


def p_value(stairs: Iterable[EpochFalls]) -> float:
    """Return the p-value of the hypothesis that falls at the starts of epochs are not larger than falls in the middle of
    epochs, over all trials.

    The p-value is that of a one-sided t-test of each excess fall divided by the loss just before the fall. Falls become smaller
    as the loss becomes smaller; without the division by the loss, this trend would count as noise. A curve that flattens has a
    negative excess fall, so the test is conservative.
    """
    shares = np.concatenate([s.relative_excess for s in stairs])
    if len(shares) < 3 or not np.ptp(shares) > 0:
        return 1.0
    return float(stats.ttest_1samp(shares, 0.0, alternative="greater").pvalue)


def _mean_loss_between(steps: IntArray, values: FloatArray, start: float, end: float) -> float:
    part = values[(steps >= start) & (steps < end)]
    return float(np.mean(part)) if len(part) >= 3 else math.nan


def _loss_fall_at(steps: IntArray, values: FloatArray, at: float, width: float) -> float:
    """Return the mean loss before step `at` minus the mean loss after it."""
    return _mean_loss_between(steps, values, at - width, at) - _mean_loss_between(steps, values, at, at + width)


def _changes_learning_rate_at(study: Study, trial: Trial, start: float, epoch: float) -> bool:
    """Return True if the learning rate changes at the given start of an epoch and is constant before and after it."""
    rates = study.curve(trial, "learning_rate").finite
    before = rates.values[(rates.steps >= start - epoch / 3) & (rates.steps < start)]
    after = rates.values[(rates.steps >= start) & (rates.steps < start + epoch / 3)]
    if not len(before) or not len(after) or not before[-1] > 0:
        return False
    constant = np.ptp(before) <= 1e-6 * before[-1] and np.ptp(after) <= 1e-6 * before[-1]
    return bool(constant and abs(after[0] / before[-1] - 1) > _MAX_LEARNING_RATE_CHANGE)


def _is_running_mean(steps: IntArray, values: FloatArray, epoch: float) -> bool:
    """Return True if the noise of the loss fades within each epoch, as it does if the logged loss is the mean over the epoch so
    far.
    """
    position = (steps[1:] % epoch) / epoch
    noise = np.abs(np.diff(values))
    inner = (steps[1:] >= epoch / 2) & (position > 1 / epoch)
    early, late = noise[inner & (position < 0.2)], noise[inner & (position > 0.8)]
    if len(early) < 3 or len(late) < 3:
        return False
    return bool(np.median(late) < _MIN_EPOCH_END_NOISE * np.median(early))
