"""Training losses that rise steadily, beyond noise and not in a single jump."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from advisor.computed.curves.curve_tails import good_trials
from advisor.computed.stability import instability, loss_blowups, validation_check
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.curve import Rise, end_rise

_LOSSES: tuple[Signal, ...] = ("train_loss", "train_eval_loss")
_RAISED = 1.5
"""Minimum ratio of a learning rate to the rate at the lowest loss at which the rate counts as raised."""
_BLOCKS = 12
"""Maximum number of segments of the rising part of a curve."""
_MIN_BLOCKS = 5
"""Minimum number of segments: four in ascending order have p = 1/24, too close to 5 %; five have p = 1/120."""


@dataclass(frozen=True, slots=True)
class SlowRise:
    """The part of a curve from its lowest level to its end."""

    rise: Rise
    """Rise from the lowest level to the level at the end, tested against noise."""
    p: float
    """p-value of the size of the rise and of its steadiness together."""
    steepest: float
    """Largest share of the rise between two neighbouring segments of up to 12; near 1 for a jump."""


@dataclass(frozen=True, slots=True)
class TrainingRise:
    """A training loss of one trial, with the level at its end compared with its lowest level."""

    trial: Trial
    metric: str
    points: int
    step: int
    """Step at which the loss reaches its lowest level."""
    slow: SlowRise
    p: float
    """p-value of a steady rise, times the number of curves judged; 1 if it is immaterial, a jump, or due to the schedule."""
    ended_above_start: bool
    improving: bool
    """True if the trial's evaluations still improve."""

    @property
    def low(self) -> float:
        """Lowest level of the loss."""
        return self.slow.rise.best_level

    @property
    def high(self) -> float:
        """Level of the loss at its end."""
        return self.slow.rise.level


def read_rises(
    study: Study, best: int, reach: float, *, material: float, visible: float, jump: float
) -> list[TrainingRise]:
    """Measure the training losses of the `best` good trials, best trial first, then by p-value. Raises MissingData without one.

    material, visible: minimum rise as a share of the curve's range, and of its lowest level. jump: maximum share of the rise in one
    segment; a larger share is a jump.
    """
    found: list[TrainingRise] = []
    for trial in good_trials(study, reach)[:best]:
        curves = {study.signals[s]: study.curve(trial, s) for s in _LOSSES if s in study.signals}
        read = [r for name, c in curves.items() if (r := _read(study, trial, name, c, material, visible, jump))]
        found += sorted(read, key=lambda r: r.p)
    return [replace(r, p=min(1.0, r.p * len(found))) for r in found]


def _read(
    study: Study, trial: Trial, metric: str, curve: Curve, material: float, visible: float, jump: float
) -> TrainingRise | None:
    finite = curve.finite
    slow = slow_rise(finite.values)
    if slow is None:
        return None
    rise = slow.rise
    step = int(finite.steps[rise.best])
    small = rise.share < material or rise.height < visible * abs(rise.best_level)
    innocent = slow.p > 0.5 or small or slow.steepest >= jump or not math.isfinite(curve.values[-1])
    explained = innocent or _rate_raised(study, trial, curve, step) or loss_blowups.unstable(study, trial)
    p = 1.0 if explained else slow.p
    improving = p < 1 and validation_check.improving(
        validation_check.of(study, trial, metric), step, int(finite.steps[-1])
    )
    return TrainingRise(trial, metric, len(finite), step, slow, p, rise.level > float(finite.values[0]), improving)


def _rate_raised(study: Study, trial: Trial, curve: Curve, step: int) -> bool:
    """Return True if the learning rate was raised after the step."""
    rates = instability.rates_at(study, trial, curve.steps.astype(float))
    if rates is None:
        return False
    at = int((curve.steps <= step).sum()) - 1
    return float(rates[at:].max()) > _RAISED * float(rates[at])


def slow_rise(values: FloatArray) -> SlowRise | None:
    """Measure the rise of a finite curve (n,); None below 6 points. If the rising part is too short to be steady, p is 1."""
    rise = end_rise(values)
    if rise is None:
        return None
    # Skip the window of the lowest level, because it was selected for being low.
    way = values[rise.best + max(1, round(0.05 * len(values))) :]
    blocks = min(_BLOCKS, len(way) // 2)
    if blocks < _MIN_BLOCKS or rise.height <= 0:
        return SlowRise(rise, 1.0, 1.0)
    levels = np.array([float(np.median(part)) for part in np.array_split(way, blocks)])
    ups = np.diff(np.concatenate([[rise.best_level], levels]))
    return SlowRise(rise, max(rise.p, steady_p(levels)), float(ups.max()) / max(rise.height, 1e-300))


def steady_p(levels: FloatArray) -> float:
    """Return the one-sided p-value of Kendall's exact test that levels (n,) rise; ties count half."""
    later = np.sign(levels[None, :] - levels[:, None])[np.triu_indices(len(levels), 1)]
    rises = float(np.sum(later > 0)) + 0.5 * float(np.sum(later == 0))
    chances = _inversions(len(levels))
    return float(min(chances[: int(len(later) - rises) + 1].sum(), 1.0))


@lru_cache(maxsize=32)
def _inversions(n: int) -> FloatArray:
    """Return the probabilities of 0, 1, ... inversions in a random permutation of n items."""
    chances = np.ones(1)
    for k in range(2, n + 1):
        chances = np.convolve(chances, np.full(k, 1 / k))
    return chances
