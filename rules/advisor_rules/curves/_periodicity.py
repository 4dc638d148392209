"""Validation curves that repeat with a period, and whether it is the period of an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.computed.curves.overfit import Costs
from advisor.model.space import as_number, words_of
from advisor.model.study import Curve, Study, Trial
from advisor_rules.curves._spectrum import MIN_POINTS, Periodicity, periodicity

_EVEN = 0.95
"""Minimum share of evaluations at the usual interval if they are evenly spaced."""
_PARTS = (1, 2, 3)
"""A pattern that repeats every epoch may have one, two or three peaks."""
_MAX_P = 0.05
"""Maximum p-value at which another curve has the same period."""
_USUAL_MOMENTUM = 0.9
"""Momentum of trials that did not log it."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The strongest period of one validation curve."""

    trial: Trial
    metric: str
    curve: Curve
    every: int
    """Steps from one evaluation to the next."""
    strongest: Periodicity
    epoch: float
    """Steps of an epoch; NaN if unknown."""
    p: float
    """p-value times the number of curves judged; 1 for a period that momentum alone can cause."""
    blind: bool
    """Whether the evaluations are too rare to show the known period of an epoch."""

    @property
    def steps(self) -> float:
        """The period in steps."""
        return self.strongest.period * self.every

    @property
    def part(self) -> int:
        """1 if the period is an epoch, 2 or 3 if it is a half or a third of one, 0 otherwise."""
        # Frequencies that differ by less than one cycle over the whole curve cannot be distinguished.
        slack = self.strongest.period / len(self.curve)
        if not math.isfinite(self.epoch):
            return 0
        return next(
            (k for k in _PARTS if abs(apparent(self.epoch / k / self.every) / self.strongest.period - 1) <= slack), 0
        )

    def shared_by(self, other: Cycle) -> bool:
        """Whether another curve has the same period, in its own epochs or in steps."""
        own = other.epoch / self.part if self.part and math.isfinite(other.epoch) else self.steps
        same = periodicity(other.curve.values, apparent(own / other.every))
        return same is not None and same.p <= _MAX_P


def apparent(period: float) -> float:
    """The apparent period, in evaluations, of a true `period`: below two evaluations, aliasing makes it look slower."""
    frequency = 1 / period
    away = abs(frequency - round(frequency))
    return 1 / away if away > 0 else math.inf


def read_cycles(study: Study, trials: Sequence[Trial], looks: Sequence[tuple[str, Costs]]) -> list[Cycle]:
    """The strongest period of each evenly spaced curve, smallest p-value first.

    If the length of an epoch is known, half of the significance level goes to its period. Trials with a cyclic learning rate are
    left out, because the curves follow its cycles.
    """
    steady = [t for t in trials if not _cyclic_rate(study, t)]
    found = [c for t in steady for metric, costs in looks if (c := _read(t, metric, costs(t).finite)) is not None]
    return sorted((replace(c, p=min(1.0, c.p * len(found))) for c in found), key=lambda c: c.p)


def _read(trial: Trial, metric: str, curve: Curve) -> Cycle | None:
    every, epoch = _spacing(curve), trial.fact("steps_per_epoch")
    anything = periodicity(curve.values) if every else None
    if every is None or anything is None:
        return None
    epoch = epoch if epoch > 0 else math.nan
    own = periodicity(curve.values, apparent(epoch / every)) if math.isfinite(epoch) else None
    best = own if own is not None and own.p <= anything.p else anything
    p = best.p if own is None else min(1.0, 2 * best.p)
    cycle = Cycle(trial, metric, curve, every, best, epoch, p, blind=own is None and math.isfinite(epoch))
    return cycle if cycle.part or cycle.steps > _ringing(trial) else replace(cycle, p=1.0)


def _spacing(curve: Curve) -> int | None:
    """Steps between evenly spaced evaluations; None if they are uneven or too few."""
    if len(curve) < MIN_POINTS:
        return None
    gaps = np.diff(curve.steps)[1:]
    usual = int(np.median(gaps))
    return usual if float(np.mean(np.abs(gaps - usual) <= 0.05 * usual)) >= _EVEN else None


def _ringing(trial: Trial) -> float:
    """The longest period, in steps, at which momentum alone can make a loss oscillate.

    Weights oscillate like a spring with a damping rate of (1 - momentum) / 2 per step; slower oscillations are damped away.
    """
    values = [as_number(trial.facts.get(f"optimizer.{name}")) for name in ("momentum", "beta1")]
    for name, value in trial.params.items():
        words = words_of(name)
        if words[-1:] in (["momentum"], ["beta1"]):
            values.append(1 - as_number(value) if words[:2] == ["one", "minus"] else as_number(value))
    momentum = max((v for v in values if 0 < v < 1), default=_USUAL_MOMENTUM)
    return 4 * math.pi / (1 - momentum)


def _cyclic_rate(study: Study, trial: Trial) -> bool:
    """Whether the learning rate rises and falls at least twice."""
    if '"cyclic"' in trial.facts.get("schedule", ""):
        return True
    rates = study.curve(trial, "learning_rate").finite.values
    if len(rates) < 3:
        return False
    moves = np.sign(np.diff(rates)[np.abs(np.diff(rates)) > 1e-3 * rates.max()])
    return int(np.sum((moves[1:] > 0) & (moves[:-1] < 0))) >= 2
