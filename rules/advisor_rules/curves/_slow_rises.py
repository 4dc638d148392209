"""Finds training losses that rise steadily, by more than noise and not in a single jump."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from advisor.computed.curves.good_trials import good_trials
from advisor.computed.stability import instability, loss_blowups, validation_check
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.curve import LevelRise, rise_at_end

_TRAINING_LOSS_SIGNALS: tuple[Signal, ...] = ("train_loss", "train_eval_loss")
_MIN_LEARNING_RATE_RATIO = 1.5
"""Minimum ratio of a later learning rate to the learning rate at the lowest loss for the learning rate to count as raised."""
_MAX_RISE_SEGMENTS = 12
"""Maximum number of segments of the rising part of a curve."""
_MIN_RISE_SEGMENTS = 5
"""Minimum number of segments of the rising part of a curve. Four segments ascend by chance with probability 1/24, which is too
close to 5 %; five segments ascend by chance with probability 1/120."""


@dataclass(frozen=True, slots=True)
class SlowRise:
    """The rise of a curve from its lowest level to its last point."""

    level_rise: LevelRise
    """Rise from the lowest level to the level at the end, tested against noise."""
    p_value: float
    """The larger p-value of two tests: of the size and of the steadiness of the rise."""
    steepest_segment_share: float
    """Largest part of the rise between two neighbouring segments of the curve, as a share of the whole rise; near 1 for a jump."""


@dataclass(frozen=True, slots=True)
class TrainingRise:
    """Comparison of the final level of a trial's training loss with the lowest level of that loss."""

    trial: Trial
    metric: str
    point_count: int
    lowest_level_step: int
    """Step at which the loss reaches its lowest level."""
    slow_rise: SlowRise
    p_value: float
    """p-value of a steady rise times the number of curves examined (Bonferroni); 1 if the rise is immaterial, a jump, or due to
    the schedule.
    """
    ended_above_start: bool
    evaluations_improve: bool
    """True if the trial's evaluations still improve."""

    @property
    def lowest_level(self) -> float:
        """Lowest level of the loss."""
        return self.slow_rise.level_rise.best_level

    @property
    def final_level(self) -> float:
        """Level of the loss at the end of the curve."""
        return self.slow_rise.level_rise.level


def measure_training_rises(
    study: Study, best: int, reach: float, *, material: float, visible: float, jump: float
) -> list[TrainingRise]:
    """Measure the rises of the training losses of the best trials, at most `best` of them. Results are ordered by trial, best
    first, then by p-value.

    Raises MissingData if there is no good trial. `material` is the minimum rise as a share of the curve's range, `visible` the
    minimum rise as a share of the curve's lowest level. If one segment holds more than the share `jump` of the rise, the rise
    is a jump.
    """
    rises: list[TrainingRise] = []
    for trial in good_trials(study, reach)[:best]:
        curves = {study.signals[s]: study.curve(trial, s) for s in _TRAINING_LOSS_SIGNALS if s in study.signals}
        rises_of_trial = [
            r for name, c in curves.items() if (r := _measure_training_rise(study, trial, name, c, material, visible, jump))
        ]
        rises += sorted(rises_of_trial, key=lambda r: r.p_value)
    return [replace(r, p_value=min(1.0, r.p_value * len(rises))) for r in rises]


def _measure_training_rise(
    study: Study, trial: Trial, metric: str, curve: Curve, material: float, visible: float, jump: float
) -> TrainingRise | None:
    finite = curve.finite
    slow = measure_slow_rise(finite.values)
    if slow is None:
        return None
    rise = slow.level_rise
    step = int(finite.steps[rise.best_index])
    small = rise.share < material or rise.height < visible * abs(rise.best_level)
    not_a_slow_rise = slow.p_value > 0.5 or small or slow.steepest_segment_share >= jump or not math.isfinite(curve.values[-1])
    is_explained = not_a_slow_rise or _is_learning_rate_raised(study, trial, curve, step) or loss_blowups.unstable(study, trial)
    p = 1.0 if is_explained else slow.p_value
    validation_improves = p < 1 and validation_check.do_evaluations_improve(
        validation_check.heldout_curves(study, trial, metric), step, int(finite.steps[-1])
    )
    return TrainingRise(trial, metric, len(finite), step, slow, p, rise.level > float(finite.values[0]), validation_improves)


def _is_learning_rate_raised(study: Study, trial: Trial, curve: Curve, step: int) -> bool:
    rates = instability.learning_rates_at(study, trial, curve.steps.astype(float))
    if rates is None:
        return False
    at = int((curve.steps <= step).sum()) - 1
    return float(rates[at:].max()) > _MIN_LEARNING_RATE_RATIO * float(rates[at])


def measure_slow_rise(values: FloatArray) -> SlowRise | None:
    """Measure the rise of a finite curve (n,); None for fewer than 6 points. The p-value is 1 if the rising part of the curve
    is too short for a test."""
    rise = rise_at_end(values)
    if rise is None:
        return None
    # Leave out the window with the lowest level, because a window selected for its low level is partly low by chance.
    later_part = values[rise.best_index + max(1, round(0.05 * len(values))) :]
    blocks = min(_MAX_RISE_SEGMENTS, len(later_part) // 2)
    if blocks < _MIN_RISE_SEGMENTS or rise.height <= 0:
        return SlowRise(rise, 1.0, 1.0)
    levels = np.array([float(np.median(part)) for part in np.array_split(later_part, blocks)])
    increments = np.diff(np.concatenate([[rise.best_level], levels]))
    return SlowRise(rise, max(rise.p_value, p_of_steady_rise(levels)), float(increments.max()) / max(rise.height, 1e-300))


def p_of_steady_rise(levels: FloatArray) -> float:
    """Return the one-sided p-value of Kendall's exact test for a rising trend in levels (n,); ties count half."""
    signs = np.sign(levels[None, :] - levels[:, None])[np.triu_indices(len(levels), 1)]
    concordant = float(np.sum(signs > 0)) + 0.5 * float(np.sum(signs == 0))
    chances = _inversion_probabilities(len(levels))
    return float(min(chances[: int(len(signs) - concordant) + 1].sum(), 1.0))


@lru_cache(maxsize=32)
def _inversion_probabilities(n: int) -> FloatArray:
    """Return the probabilities of 0, 1, ... inversions in a random permutation of n items."""
    chances = np.ones(1)
    for k in range(2, n + 1):
        chances = np.convolve(chances, np.full(k, 1 / k))
    return chances
