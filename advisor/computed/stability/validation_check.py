"""Decides by evaluations on held-out data whether a rise of the training loss means a worse model. Augmentation, a harder
curriculum or a larger loss weight raise only the training loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.model.study import Curve, Study, Trial
from advisor.stats import curve as curves, jumps

_EVALUATIONS_PER_LEVEL = 3
"""Number of evaluations whose median is a level of the curve."""
_MIN_EVALUATIONS_AFTER_RISE = 2
_MAX_EQUAL_DIFFERENCE = 2.0
"""Maximum difference between levels that count as equal, in standard deviations of the noise of one evaluation."""
_MIN_IMPROVEMENT = 0.05
"""Minimum improvement of evaluations, as a share of their improvement before the rise of the training loss."""
_MAX_NOISE_SHARE = 0.1
"""Maximum noise of a usable curve, as a share of its improvement before the rise."""


def heldout_curves(study: Study, trial: Trial, judged: str) -> list[Curve]:
    """Return the trial's curves of evaluations on held-out data as finite costs, except the curve of the metric `judged`."""
    excluded_metrics = {study.signals.get(s) for s in ("train_loss", "train_eval_loss", "train_objective")} | {judged}
    curves_by_name = {}
    valid_loss_name = study.signals.get("valid_loss")
    if valid_loss_name is not None:
        curves_by_name[valid_loss_name] = study.metric(trial, valid_loss_name).finite
    curves_by_name[study.spec.objective.metric] = study.cost_curve(trial).finite
    return [c for name, c in curves_by_name.items() if name not in excluded_metrics and len(c)]


def are_evaluations_unharmed(evaluations: list[Curve], start: int, end: int) -> bool:
    """Return True if evaluations from step `start` to `end` are as good as the best earlier evaluations, on all precise curves."""
    level_changes = [m for c in evaluations if (m := _change_of_level(c, start, end)) is not None]
    return bool(level_changes) and all(m.rise <= _MAX_EQUAL_DIFFERENCE * m.noise for m in level_changes)


def do_evaluations_improve(evaluations: list[Curve], start: int, end: int) -> bool:
    """Return True if evaluations up to step `end` are clearly better than all up to step `start`, on all precise curves."""
    moves = [m for c in evaluations if (m := _change_of_level(c, start, end, last=True)) is not None]
    return bool(moves) and all(-m.rise > max(_MAX_EQUAL_DIFFERENCE * m.noise, _MIN_IMPROVEMENT * m.earlier_gain) for m in moves)


class _LevelChange(NamedTuple):
    rise: float
    noise: float
    """Standard deviation of one evaluation's noise."""
    earlier_gain: float
    """Improvement from the start of training to the best level."""


def _change_of_level(curve: Curve, start: int, end: int, *, last: bool = False) -> _LevelChange | None:
    """Return the change from the best level up to step `start` to the first (or last) level up to `end`; None if too noisy."""
    before = curve.values[curve.steps <= start]
    after = curve.values[(curve.steps > start) & (curve.steps <= end)]
    noise_sd = curves.noise_sd(curve.values)
    if len(before) < _EVALUATIONS_PER_LEVEL or len(after) < _MIN_EVALUATIONS_AFTER_RISE or not noise_sd >= 0:
        return None
    best_level = float(jumps.running_medians(before, _EVALUATIONS_PER_LEVEL).min())
    earlier_gain = max(float(before[0]), float(np.median(before[:_EVALUATIONS_PER_LEVEL]))) - best_level
    if not earlier_gain > 0 or _MAX_EQUAL_DIFFERENCE * noise_sd > _MAX_NOISE_SHARE * earlier_gain:
        return None
    # The model may recover by the second evaluation, so compare the first evaluation and also the median of the first few.
    level_after = np.median(after[-_EVALUATIONS_PER_LEVEL:] if last else after[:_EVALUATIONS_PER_LEVEL])
    if not last:
        level_after = max(after[0], level_after)
    return _LevelChange(float(level_after) - best_level, noise_sd, earlier_gain)
