"""Training losses that rise slowly where they should fall."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from advisor.computed.curves.curve_tails import good_trials
from advisor.computed.stability import instability, loss_blowups, validation_check
from advisor.model.study import Curve, Signal, Study, Trial
from advisor_rules.curves._rising import SlowRise, slow_rise

_LOSSES: tuple[Signal, ...] = ("train_loss", "train_eval_loss")
_RAISED = 1.5
"""Learning rates up to this multiple of the one at the lowest loss count as the same."""


@dataclass(frozen=True, slots=True)
class TrainingRise:
    """How one training loss of one trial ends, against its lowest level."""

    trial: Trial
    metric: str
    """As logged."""
    points: int
    step: int
    """The step of the lowest level."""
    slow: SlowRise
    p: float
    """p-value of a steady rise, times the number of curves judged; 1 where it is immaterial, a jump or the schedule's doing."""
    ended_above_start: bool
    improving: bool
    """Whether the trial's evaluations go on improving all the same."""

    @property
    def low(self) -> float:
        """The lowest level."""
        return self.slow.rise.best_level

    @property
    def high(self) -> float:
        """The level of the end."""
        return self.slow.rise.level


def read_rises(
    study: Study, best: int, reach: float, *, material: float, visible: float, jump: float
) -> list[TrainingRise]:
    """The training losses of the `best` good trials, best trial first, and of one trial the surest rise first.

    Raises MissingData where no trial is good. material, visible: smallest rise as a share of what the curve moved, and of its
    lowest level; jump: share of it that comes at one blow from which on it is no slow rise.
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
    """Whether the learning rate lay higher at any time after the step than at it."""
    rates = instability.rates_at(study, trial, curve.steps.astype(float))
    if rates is None:
        return False
    at = int((curve.steps <= step).sum()) - 1
    return float(rates[at:].max()) > _RAISED * float(rates[at])
