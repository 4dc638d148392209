"""Validation curves that repeat with a period, and what the period is of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.computed.curves.overfit import Costs
from advisor.model.space import as_number, words_of
from advisor.model.study import Curve, Study, Trial
from advisor_rules.curves._spectrum import FEWEST, Periodicity, periodicity

_EVEN = 0.95
"""Share of the intervals between evaluations that are the usual one where they are evenly spaced."""
_PARTS = (1, 2, 3)
"""Parts of an epoch that a period may be of: what repeats once an epoch may have two or three humps."""
_AGREES = 0.05
_USUAL_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Cycle:
    """The strongest period of one validation curve."""

    trial: Trial
    metric: str
    curve: Curve
    every: int
    """Steps from one evaluation to the next."""
    found: Periodicity
    epoch: float
    """Steps of an epoch; NaN where that is unknown."""
    p: float
    """p-value, times the number of curves judged; 1 for a period that momentum alone may make."""
    blind: bool
    """Whether evaluations lie so that the period of an epoch, which is known, cannot show between them."""

    @property
    def steps(self) -> float:
        """The period in steps."""
        return self.found.period * self.every

    @property
    def part(self) -> int:
        """1 where the period is an epoch, 2 or 3 where it is that part of one, 0 where it is neither or epochs are unknown."""
        # Two frequencies that differ by less than one cycle over the whole curve are the same.
        slack = self.found.period / len(self.curve)
        if not math.isfinite(self.epoch):
            return 0
        return next((k for k in _PARTS if abs(seen(self.epoch / k / self.every) / self.found.period - 1) <= slack), 0)

    def shared_by(self, other: Cycle) -> bool:
        """Whether another curve has the same period: in parts of its own epoch, or in steps."""
        own = other.epoch / self.part if self.part and math.isfinite(other.epoch) else self.steps
        there = periodicity(other.curve.values, seen(own / other.every))
        return there is not None and there.p <= _AGREES


def seen(period: float) -> float:
    """The period, in evaluations, at which one of `period` evaluations shows: one faster than two evaluations looks slower."""
    frequency = 1 / period
    away = abs(frequency - round(frequency))
    return 1 / away if away > 0 else math.inf


def read_cycles(study: Study, trials: Sequence[Trial], looks: Sequence[tuple[str, Costs]]) -> list[Cycle]:
    """The strongest period of each evenly spaced curve of the trials, the surest first.

    Where the length of an epoch is known, half of the chance goes to its period. Trials whose learning rate goes up and down
    are left out: its cycles would show.
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
    known = periodicity(curve.values, seen(epoch / every)) if math.isfinite(epoch) else None
    best = known if known is not None and known.p <= anything.p else anything
    p = best.p if known is None else min(1.0, 2 * best.p)
    cycle = Cycle(trial, metric, curve, every, best, epoch, p, blind=known is None and math.isfinite(epoch))
    return cycle if cycle.part or cycle.steps > _ringing(trial) else replace(cycle, p=1.0)


def _spacing(curve: Curve) -> int | None:
    """Steps between evaluations that are evenly spaced; None where they are not, or too few."""
    if len(curve) < FEWEST:
        return None
    gaps = np.diff(curve.steps)[1:]
    usual = int(np.median(gaps))
    return usual if float(np.mean(np.abs(gaps - usual) <= 0.05 * usual)) >= _EVEN else None


def _ringing(trial: Trial) -> float:
    """The longest period, in steps, with which momentum by itself may make a loss swing.

    Along a direction of any curvature the weights swing like a damped spring, at a rate of (1 - momentum) / 2 a step; only
    oscillations that are faster than they are damped show.
    """
    values = [as_number(trial.facts.get(f"optimizer.{name}")) for name in ("momentum", "beta1")]
    for name, value in trial.params.items():
        words = words_of(name)
        if words[-1:] in (["momentum"], ["beta1"]):
            values.append(1 - as_number(value) if words[:2] == ["one", "minus"] else as_number(value))
    momentum = max((v for v in values if 0 < v < 1), default=_USUAL_MOMENTUM)
    return 4 * math.pi / (1 - momentum)


def _cyclic_rate(study: Study, trial: Trial) -> bool:
    """Whether the learning rate rises again and again."""
    if '"cyclic"' in trial.facts.get("schedule", ""):
        return True
    rates = study.curve(trial, "learning_rate").finite.values
    if len(rates) < 3:
        return False
    moves = np.sign(np.diff(rates)[np.abs(np.diff(rates)) > 1e-3 * rates.max()])
    return int(np.sum((moves[1:] > 0) & (moves[:-1] < 0))) >= 2
