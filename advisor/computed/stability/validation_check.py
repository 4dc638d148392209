"""Decides by evaluations whether a rise of the training loss means a worse model. Augmentation, a harder curriculum or a larger
loss weight raise only the training loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.model.study import Curve, Study, Trial
from advisor.stats import curve as curves, jumps

_EVALUATIONS_PER_LEVEL = 3
"""Number of evaluations whose median is a level."""
_MIN_EVALUATIONS_AFTER_RISE = 2
_MAX_EQUAL_DIFFERENCE = 2.0
"""Maximum difference between equal levels, in standard deviations of one evaluation's noise."""
_MIN_IMPROVEMENT = 0.05
"""Minimum improvement, as a share of that before the rise of the training loss."""
_MAX_NOISE_SHARE = 0.1
"""Maximum noise of a usable curve, as a share of its improvement before the rise."""


def heldout_curves(study: Study, trial: Trial, judged: str) -> list[Curve]:
    """Return the trial's evaluations on held-out data as finite costs, without those of the metric `judged`."""
    training = {study.signals.get(s) for s in ("train_loss", "train_eval_loss", "train_objective")} | {judged}
    curves_by_name = {}
    valid = study.signals.get("valid_loss")
    if valid is not None:
        curves_by_name[valid] = study.metric(trial, valid).finite
    curves_by_name[study.spec.objective.metric] = study.cost_curve(trial).finite
    return [c for name, c in curves_by_name.items() if name not in training and len(c)]


def are_evaluations_unharmed(evaluations: list[Curve], start: int, end: int) -> bool:
    """Return True if evaluations between `start` and `end` equal the best earlier ones, on all sufficiently precise curves."""
    moves = [m for c in evaluations if (m := _change_of_level(c, start, end)) is not None]
    return bool(moves) and all(m.rise <= _MAX_EQUAL_DIFFERENCE * m.noise for m in moves)


def do_evaluations_improve(evaluations: list[Curve], start: int, end: int) -> bool:
    """Return True if evaluations at `end` are clearly better than up to `start`, on all sufficiently precise curves."""
    moves = [m for c in evaluations if (m := _change_of_level(c, start, end, last=True)) is not None]
    return bool(moves) and all(-m.rise > max(_MAX_EQUAL_DIFFERENCE * m.noise, _MIN_IMPROVEMENT * m.earlier_gain) for m in moves)


class _LevelChange(NamedTuple):
    """The change of a curve from its best level before a step to its level after the step."""

    rise: float
    noise: float
    """Standard deviation of one evaluation's noise."""
    earlier_gain: float
    """Improvement from the start of training to the best level."""


def _change_of_level(curve: Curve, start: int, end: int, *, last: bool = False) -> _LevelChange | None:
    """Return the change from the best level before `start` to the first (or last) one up to `end`; None if too noisy."""
    values_before = curve.values[curve.steps <= start]
    values_after = curve.values[(curve.steps > start) & (curve.steps <= end)]
    noise = curves.noise(curve.values)
    if len(values_before) < _EVALUATIONS_PER_LEVEL or len(values_after) < _MIN_EVALUATIONS_AFTER_RISE or not noise >= 0:
        return None
    best = float(jumps.running_medians(values_before, _EVALUATIONS_PER_LEVEL).min())
    gain = max(float(values_before[0]), float(np.median(values_before[:_EVALUATIONS_PER_LEVEL]))) - best
    if not gain > 0 or _MAX_EQUAL_DIFFERENCE * noise > _MAX_NOISE_SHARE * gain:
        return None
    # The model may recover by the second evaluation, so compare the first evaluation and also the median of the first few.
    level = (
        np.median(values_after[-_EVALUATIONS_PER_LEVEL:])
        if last
        else max(values_after[0], np.median(values_after[:_EVALUATIONS_PER_LEVEL]))
    )
    return _LevelChange(float(level) - best, noise, gain)
