"""Evaluations as a check on a rising training loss: did the model get worse, or only what the loss measures?

Augmentation that starts, a curriculum that turns to harder examples or a larger weight of the loss raise the training loss without
harm to the model. Evaluations do not change with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.model.study import Curve, Study, Trial
from advisor.stats import curve as curves
from advisor.stats import jumps

_AT_ONCE = 3
"""Evaluations that a level is the median of."""
_MIN_AFTER = 2
"""Minimum evaluations after the rise."""
_BEYOND = 2.0
"""Two levels are the same if they differ by at most this many standard deviations of an evaluation."""
_VISIBLE = 0.05
"""Minimum improvement, as a share of what the curve had gained."""
_MATERIAL = 0.1
"""Maximum scatter of evaluations, as a share of what the curve had gained."""


def of(study: Study, trial: Trial, judged: str) -> list[Curve]:
    """The finite evaluations of the trial on held-out data, as costs, without the metric that is `judged`."""
    training = {study.signals.get(s) for s in ("train_loss", "train_eval_loss", "train_objective")} | {judged}
    curves_by_name = {}
    valid = study.signals.get("valid_loss")
    if valid is not None:
        curves_by_name[valid] = study.metric(trial, valid).finite
    curves_by_name[study.spec.objective.metric] = study.cost_curve(trial).finite
    return [c for name, c in curves_by_name.items() if name not in training and len(c)]


def unharmed(evaluations: list[Curve], start: int, end: int) -> bool:
    """Whether evaluations from `start` to `end` are as good as the best before, on every curve precise enough to show it."""
    moves = [m for c in evaluations if (m := _move(c, start, end)) is not None]
    return bool(moves) and all(m.height <= _BEYOND * m.noise for m in moves)


def improving(evaluations: list[Curve], start: int, end: int) -> bool:
    """Whether evaluations at `end` are clearly better than the best up to `start`, on every curve precise enough to show it."""
    moves = [m for c in evaluations if (m := _move(c, start, end, last=True)) is not None]
    return bool(moves) and all(-m.height > max(_BEYOND * m.noise, _VISIBLE * m.gained) for m in moves)


class _Move(NamedTuple):
    """The move from the best level of a curve up to a step to a level after it."""

    height: float
    noise: float
    """Standard deviation of one evaluation."""
    gained: float
    """From the start of training to the best level."""


def _move(curve: Curve, start: int, end: int, *, last: bool = False) -> _Move | None:
    """The move to the first (or last) level between `start` and `end`; None if evaluations are too few or too noisy."""
    before = curve.values[curve.steps <= start]
    after = curve.values[(curve.steps > start) & (curve.steps <= end)]
    noise = curves.noise(curve.values)
    if len(before) < _AT_ONCE or len(after) < _MIN_AFTER or not noise >= 0:
        return None
    best = float(jumps.levels(before, _AT_ONCE).min())
    gained = max(float(before[0]), float(np.median(before[:_AT_ONCE]))) - best
    if not gained > 0 or _BEYOND * noise > _MATERIAL * gained:
        return None
    # Harm may be over by the second evaluation, so both the first one and the first few must show none.
    level = np.median(after[-_AT_ONCE:]) if last else max(after[0], np.median(after[:_AT_ONCE]))
    return _Move(float(level) - best, noise, gained)
