"""Where in training good trials are at their best, and whether those that are so late would gain by more steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.steps import schedules
from advisor.model.evidence import Evidence, FigureEvidence, HistogramEvidence, Line
from advisor.model.study import Study, Trial
from advisor.stats import trend

_TO_ZERO = ("linear", "cosine", "polynomial")
"""Schedules that end near zero unless they are told otherwise."""


@dataclass(frozen=True, slots=True)
class BestStep:
    """Where one trial is at its best; places are shares of the steps that it was to train."""

    trial: Trial
    steps: int
    """How many steps it was to train, or did train if that is unknown."""
    place: float
    """Of its best evaluation."""
    tied: float
    """Of the first evaluation that is as good within noise."""
    at_start: bool
    """Whether its first evaluation is its best."""

    def chance_late(self, late: float) -> float:
        """How likely a best step falls in the `late` last share of the steps if it may be anywhere, or anywhere on its plateau.

        A plateau that begins in the second half is none: until then the trial improved beyond noise.
        """
        return late / (1 - self.tied) if self.tied <= 0.5 else late


def read(study: Study, best: int, reach: float, *, fewest: int) -> list[BestStep]:
    """The best steps of the `best` good trials, best trial first; raises MissingData where there is no good trial.

    Left out are a trial evaluated at fewer than `fewest` steps, whose best step had hardly a choice, and one that was cut short
    soon after its best step: it might have had a better one later.
    """
    placed = []
    for trial in curve_tails.good_trials(study, reach)[:best]:
        curve = study.cost_curve(trial).finite
        if len(np.unique(curve.steps)) < fewest:
            continue
        last = int(curve.steps[-1])
        total = max(curve_tails.length(study, trial, last), 1)
        place, tied = trend.step_position(curve.steps, curve.values, total=total)
        if study.cut_short(trial) and place * total > 0.5 * last:
            continue
        first = bool(curve.values[0] == curve.values.min())
        placed.append(BestStep(trial=trial, steps=total, place=place, tied=tied, at_start=first))
    return placed


@dataclass(frozen=True, slots=True)
class Late:
    """What is known of the trials whose best step comes late."""

    steps: tuple[BestStep, ...]
    gain: float
    """Share of a trial's gain that only its last steps brought, the median."""
    readings: tuple[trend.End | None, ...]
    """How their objectives end; None where there are too few evaluations, or no gain beyond noise."""
    rates: tuple[float, ...]
    """Their learning rates at the end as shares of the peak; NaN where not logged."""
    decayed: bool
    """Whether most of them are known to end with a learning rate near zero, so that the schedule alone puts the best step last."""
    improving: int
    """Trials that more steps would surely improve."""
    longer: int | None
    """How many steps to train for, where most good trials would gain by more."""
    left_to_others: bool
    """Whether `curve-still-improving` says by itself how long to train."""

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """What was read of each of them: (what, values)."""
        forecasts = ", ".join("unknown" if e is None else f"{e.forecast:.1%}" for e in self.readings)
        ended = ", ".join("not logged" if np.isnan(r) else f"{r:.1%}" for r in self.rates)
        return (
            ("forecast for as many steps again, share of the gain", forecasts),
            ("learning rate at the end, share of its peak", ended),
        )


def late_trials(
    study: Study,
    placed: Sequence[BestStep],
    share: float,
    *,
    decayed: float,
    material: float,
    strong: float,
    alpha: float,
) -> Late:
    """Reads those of the good trials that are at their best in the last `share` of the steps.

    decayed: share of its peak below which a learning rate is near zero. material: forecast gain of as many steps again, as a share
    of what a trial gained, for which more steps pay; strong: the one that must surely be exceeded after a decay.
    """
    late = [p for p in placed if p.place > 1 - share]
    readings = [_objective_end(study, p.trial) for p in late]
    rates = [curve_tails.rate_at_end(study, p.trial) for p in late]
    near_zero = [_near_zero(study, p.trial, rate, decayed) for p, rate in zip(late, rates, strict=True)]
    pays = [
        e
        for e, low in zip(readings, near_zero, strict=True)
        if e is not None and e.improving(material, alpha) and (not low or e.chance_above(strong) >= 1 - alpha)
    ]
    left_to_others, longer = curve_tails.asks_for_more(study, alpha), None
    if 2 * len(pays) > len(placed) and not left_to_others:
        longer = curve_tails.round_up(np.median([p.steps for p in late]) * float(np.median([e.stretch for e in pays])))
    return Late(
        steps=tuple(late),
        gain=float(np.median([_late_gain(study, p, share) for p in late])),
        readings=tuple(readings),
        rates=tuple(rates),
        decayed=2 * sum(near_zero) > len(late),
        improving=len(pays),
        longer=longer,
        left_to_others=left_to_others,
    )


def evidence(
    placed: Sequence[BestStep], caption: str, lines: Mapping[str, float], rows: Sequence[tuple[str, str]]
) -> tuple[Evidence, ...]:
    """Where the best steps lie: their histogram, with these shares of training marked, and figures, among them `rows`."""
    at = np.array([p.place for p in placed])
    counts, edges = np.histogram(at, bins=20, range=(0, 1))
    where = f"{at.min():.1%} to {at.max():.1%}, median {np.median(at):.1%}"
    return (
        HistogramEvidence(
            quantity="best step, as a share of the steps to train",
            caption=caption,
            edges=tuple(edges.tolist()),
            counts=tuple(counts.tolist()),
            lines=tuple(Line(value=value, label=label) for label, value in lines.items()),
        ),
        FigureEvidence(rows=(("good trials", str(len(at))), ("best steps, share of training", where), *rows)),
    )


def _near_zero(study: Study, trial: Trial, rate: float, decayed: float) -> bool:
    return rate < decayed if np.isfinite(rate) else schedules.read(study, trial).noted in _TO_ZERO


def _late_gain(study: Study, placed: BestStep, late: float) -> float:
    """Share of the trial's gain that only the `late` last share of its steps brought."""
    curve = study.cost_curve(placed.trial).finite
    return trend.gain_after(curve.steps, curve.values, after=(1 - late) * placed.steps)


def _objective_end(study: Study, trial: Trial) -> trend.End | None:
    """How the trial's objective ends; None where it has too few evaluations or gained nothing beyond its noise."""
    curve = study.cost_curve(trial).finite
    return trend.read_end(curve.steps, curve.values, tail=curve_tails.TAIL)
