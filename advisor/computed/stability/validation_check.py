"""What validation says where a training loss rises: whether the model got worse there, or only what the loss measures changed.

Augmentation that sets in, a curriculum that turns to harder examples, a weight of the loss that is raised: the loss of the training
batches goes up and the model does not get worse. Evaluations do not know of any of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from advisor.model.study import Curve, Study, Trial
from advisor.stats import curve as curves
from advisor.stats import jumps

_AT_ONCE = 3
"""Evaluations that a level is the median of."""
_FEWEST = 2
_BEYOND = 2.0
"""Times the noise of an evaluation within which two levels are the same."""
_VISIBLE = 0.05
"""Of what the curve had gained: less is no improvement to speak of."""
_MATERIAL = 0.1
"""Of what the curve had gained: evaluations that scatter by more would not show a rise that matters."""


def of(study: Study, trial: Trial, judged: str) -> list[Curve]:
    """The finite evaluations of the trial that are not of training data, lower is better; not the metric that is `judged`."""
    training = {study.signals.get(s) for s in ("train_loss", "train_eval_loss", "train_objective")} | {judged}
    found = {}
    valid = study.signals.get("valid_loss")
    if valid is not None:
        found[valid] = study.metric(trial, valid).finite
    found[study.spec.objective.metric] = study.cost_curve(trial).finite
    return [c for name, c in found.items() if name not in training and len(c)]


def unharmed(witnesses: list[Curve], start: int, end: int) -> bool:
    """Whether evaluations after step `start`, up to `end`, are as good as the best before, by every curve that can show it."""
    moves = [m for c in witnesses if (m := _move(c, start, end)) is not None]
    return bool(moves) and all(m.height <= _BEYOND * m.noise for m in moves)


def improving(witnesses: list[Curve], start: int, end: int) -> bool:
    """Whether evaluations at `end` are clearly better than the best up to step `start`, by every curve that can show it."""
    moves = [m for c in witnesses if (m := _move(c, start, end, last=True)) is not None]
    return bool(moves) and all(-m.height > max(_BEYOND * m.noise, _VISIBLE * m.gained) for m in moves)


class _Move(NamedTuple):
    """From the best level of a curve up to some step to one after it."""

    height: float
    noise: float
    """Standard deviation of one evaluation."""
    gained: float
    """From the start of training to the best level."""


def _move(curve: Curve, start: int, end: int, *, last: bool = False) -> _Move | None:
    """To the first (or last) level after step `start`, up to `end`; None where evaluations are too few or too noisy to show it."""
    before = curve.values[curve.steps <= start]
    after = curve.values[(curve.steps > start) & (curve.steps <= end)]
    noise = curves.noise(curve.values)
    if len(before) < _AT_ONCE or len(after) < _FEWEST or not noise >= 0:
        return None
    best = float(jumps.levels(before, _AT_ONCE).min())
    gained = max(float(before[0]), float(np.median(before[:_AT_ONCE]))) - best
    if not gained > 0 or _BEYOND * noise > _MATERIAL * gained:
        return None
    # Harm may be gone by the second evaluation: neither the first one nor the first few may show any.
    level = np.median(after[-_AT_ONCE:]) if last else max(after[0], np.median(after[:_AT_ONCE]))
    return _Move(float(level) - best, noise, gained)
