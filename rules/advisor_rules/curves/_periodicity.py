"""Finds periodic validation curves, and compares their period with the length of an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.computed.curves.overfit import CostCurveFunction
from advisor.model.space import as_number, words_of_name
from advisor.model.study import Curve, Study, Trial
from advisor_rules.curves._spectrum import MIN_POINTS, Periodicity, find_strongest_period

_MIN_EQUAL_INTERVAL_SHARE = 0.95
"""Minimum share of equal intervals between evaluations at which the evaluations count as evenly spaced."""
_PERIODS_PER_EPOCH = (1, 2, 3)
"""Numbers of periods per epoch at which the epoch counts as the cause of the period."""
_MAX_P_VALUE = 0.05
"""Maximum p-value at which two curves count as having the same period."""
_DEFAULT_MOMENTUM = 0.9
"""Momentum that is assumed for trials without a logged momentum."""


@dataclass(frozen=True, slots=True)
class CurvePeriod:
    """The strongest period of one validation curve."""

    trial: Trial
    metric: str
    curve: Curve
    evaluation_interval: int
    """Number of steps from one evaluation to the next."""
    strongest_period: Periodicity
    steps_per_epoch: float
    """Number of steps in an epoch; NaN if unknown."""
    p_value: float
    """p-value of the period times the number of curves examined (Bonferroni); 1 if momentum alone can cause the period."""
    misses_epoch_period: bool
    """True if the length of an epoch is known, but evaluations are too rare to show a period of one epoch."""

    @property
    def period_in_steps(self) -> float:
        """Period of the curve, in steps."""
        return self.strongest_period.period * self.evaluation_interval

    @property
    def periods_per_epoch(self) -> int:
        """Number of periods per epoch, from 1 to 3; 0 if an epoch does not consist of 1 to 3 whole periods."""
        # Two frequencies count as equal if their difference is less than one cycle over the whole curve.
        slack = self.strongest_period.period / len(self.curve)
        if not math.isfinite(self.steps_per_epoch):
            return 0
        return next(
            (
                k
                for k in _PERIODS_PER_EPOCH
                if abs(apparent_period(self.steps_per_epoch / k / self.evaluation_interval) / self.strongest_period.period - 1)
                <= slack
            ),
            0,
        )

    def has_same_period(self, other: CurvePeriod) -> bool:
        """Return True if the other curve has the same period, measured in epochs or in steps."""
        own = (
            other.steps_per_epoch / self.periods_per_epoch
            if self.periods_per_epoch and math.isfinite(other.steps_per_epoch)
            else self.period_in_steps
        )
        same = find_strongest_period(other.curve.values, apparent_period(own / other.evaluation_interval))
        return same is not None and same.p_value <= _MAX_P_VALUE


def apparent_period(period: float) -> float:
    """Return the apparent period, in evaluations, of a true `period`; aliasing lengthens periods below two evaluations."""
    frequency = 1 / period
    distance = abs(frequency - round(frequency))
    return 1 / distance if distance > 0 else math.inf


def find_curve_periods(
    study: Study, trials: Sequence[Trial], curves: Sequence[tuple[str, CostCurveFunction]]
) -> list[CurvePeriod]:
    """Return the strongest period of each evenly spaced curve, smallest p-value first.

    If the length of an epoch is known, half of the significance level is reserved for the period of an epoch. Trials with a
    cyclic learning rate are left out, because their curves follow the learning rate.
    """
    trials_without_cyclic_rate = [t for t in trials if not _has_cyclic_learning_rate(study, t)]
    cycles = [
        c
        for t in trials_without_cyclic_rate
        for metric, costs in curves
        if (c := _measure_curve_period(t, metric, costs(t).finite)) is not None
    ]
    return sorted((replace(c, p_value=min(1.0, c.p_value * len(cycles))) for c in cycles), key=lambda c: c.p_value)


def _measure_curve_period(trial: Trial, metric: str, curve: Curve) -> CurvePeriod | None:
    every, epoch = _evaluation_interval(curve), trial.fact("steps_per_epoch")
    strongest = find_strongest_period(curve.values) if every else None
    if every is None or strongest is None:
        return None
    epoch = epoch if epoch > 0 else math.nan
    at_epoch = find_strongest_period(curve.values, apparent_period(epoch / every)) if math.isfinite(epoch) else None
    best = at_epoch if at_epoch is not None and at_epoch.p_value <= strongest.p_value else strongest
    p = best.p_value if at_epoch is None else min(1.0, 2 * best.p_value)
    cycle = CurvePeriod(
        trial, metric, curve, every, best, epoch, p, misses_epoch_period=at_epoch is None and math.isfinite(epoch)
    )
    return (
        cycle
        if cycle.periods_per_epoch or cycle.period_in_steps > _longest_momentum_period(trial)
        else replace(cycle, p_value=1.0)
    )


def _evaluation_interval(curve: Curve) -> int | None:
    """Return the number of steps between evenly spaced evaluations; None if the evaluations are not evenly spaced or
    are too few.
    """
    if len(curve) < MIN_POINTS:
        return None
    gaps = np.diff(curve.steps)[1:]
    median_gap = int(np.median(gaps))
    return median_gap if float(np.mean(np.abs(gaps - median_gap) <= 0.05 * median_gap)) >= _MIN_EQUAL_INTERVAL_SHARE else None


def _longest_momentum_period(trial: Trial) -> float:
    """Return the longest period, in steps, at which momentum alone can make a loss oscillate.

    Weights oscillate like a spring with a damping rate of (1 - momentum) / 2 per step; oscillations with longer periods than
    the returned one die out.
    """
    values = [as_number(trial.facts.get(f"optimizer.{name}")) for name in ("momentum", "beta1")]
    for name, value in trial.params.items():
        words = words_of_name(name)
        if words[-1:] in (["momentum"], ["beta1"]):
            values.append(1 - as_number(value) if words[:2] == ["one", "minus"] else as_number(value))
    momentum = max((v for v in values if 0 < v < 1), default=_DEFAULT_MOMENTUM)
    return 4 * math.pi / (1 - momentum)


def _has_cyclic_learning_rate(study: Study, trial: Trial) -> bool:
    """Return True if the trial's learning rate rises and falls at least twice."""
    if '"cyclic"' in trial.facts.get("schedule", ""):
        return True
    rates = study.curve(trial, "learning_rate").finite.values
    if len(rates) < 3:
        return False
    moves = np.sign(np.diff(rates)[np.abs(np.diff(rates)) > 1e-3 * rates.max()])
    return int(np.sum((moves[1:] > 0) & (moves[:-1] < 0))) >= 2
