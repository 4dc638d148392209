"""Finds the best steps of good trials, and forecasts the effect of more steps on trials whose best step is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.curves.good_trials import good_trials
from advisor.computed.steps import schedules
from advisor.computed.steps.schedules import final_rate_share
from advisor.model.evidence import Evidence, HistogramEvidence, Line, table
from advisor.model.message import Message, MessagePart, Percent, join_items, say
from advisor.model.space import round_up_steps
from advisor.model.study import Study, Trial
from advisor.stats import trend
from advisor.stats.curve import gain_share_after

_SCHEDULES_TO_ZERO = ("linear", "cosine", "polynomial")
"""Names of schedules that end near zero by default."""


@dataclass(frozen=True, slots=True)
class BestStep:
    """The best step of one trial."""

    trial: Trial
    steps: int
    """Number of planned steps of the trial or, if unknown, number of steps that the trial ran."""
    best_position: float
    """Position of the trial's best evaluation in the training, as a share of the planned steps."""
    first_tied_position: float
    """Position of the first evaluation that is as good as the best one within noise, as a share of the planned steps."""
    is_first_evaluation: bool
    """True if the trial's first evaluation is its best."""

    def chance_of_late_best(self, late: float) -> float:
        """Return the probability that the best step lies in the last part of the training by chance. `late` is the length of
        this part as a share of the steps.

        Under the null hypothesis, the best step is equally likely anywhere in training or, if the trial stopped improving in
        the first half, anywhere on the plateau.
        """
        return late / (1 - self.first_tied_position) if self.first_tied_position <= 0.5 else late


def find_best_steps(study: Study, best: int, reach: float, *, evaluations: int) -> list[BestStep]:
    """Return the best steps of the good trials, at most `best` of them, best trial first. Raises MissingData if there is no
    good trial.

    Trials that were evaluated at fewer than `evaluations` steps, or that were cut short soon after their best step, are left
    out.
    """
    placed = []
    for trial in good_trials(study, reach)[:best]:
        curve = study.cost_curve(trial).finite
        if len(np.unique(curve.steps)) < evaluations:
            continue
        last = int(curve.steps[-1])
        total = max(study.planned_length(trial, last), 1)
        place, tied = trend.best_step_position(curve.steps, curve.values, total=total)
        if study.cut_short(trial) and place * total > 0.5 * last:
            continue
        first = bool(curve.values[0] == curve.values.min())
        placed.append(
            BestStep(trial=trial, steps=total, best_position=place, first_tied_position=tied, is_first_evaluation=first)
        )
    return placed


@dataclass(frozen=True, slots=True)
class LateTrials:
    """The trials whose best step lies late in training."""

    steps: tuple[BestStep, ...]
    gain: float
    """Share of a trial's improvement that came in the last part of the training, as the median over the trials."""
    last_part_length: float
    """Length of the last part of the training as a share of the steps, as the median over the trials. The last part starts at
    an evaluation, so it may be longer than requested."""
    curve_endings: tuple[trend.CurveEnd | None, ...]
    """Analysis of the final part of each trial's objective curve with a constant learning rate; None if the learning rate was
    constant for too few steps."""
    rates: tuple[float, ...]
    """Final learning rate of each trial as a share of its peak; NaN if not logged."""
    decayed: bool
    """True if most of the trials end with a learning rate near zero, so that the schedule alone may make the last step the
    best."""
    improving_count: int
    """Number of trials that more steps would improve."""
    recommended_steps: int | None
    """Recommended number of steps, if more steps would improve most good trials; else None."""
    is_length_already_advised: bool
    """True if the rule `curve-still-improving` already recommends a number of steps."""

    @property
    def evidence_rows(self) -> tuple[tuple[str, Message], ...]:
        """Rows of the evidence table, with one value per trial in each row."""
        forecasts: list[MessagePart] = ["unknown" if e is None else Percent(e.forecast_gain, 1) for e in self.curve_endings]
        final_rates: list[MessagePart] = ["not logged" if np.isnan(r) else Percent(r, 1) for r in self.rates]
        return (
            ("forecast for twice the steps, as a share of the gain", _values_text(forecasts)),
            ("learning rate at the end, as a share of its peak", _values_text(final_rates)),
        )


def _values_text(values: list[MessagePart]) -> Message:
    """Return a text with the value of each trial, or with the single value that all trials have."""
    return join_items(values[:1] if len(set(map(str, values))) == 1 else values)


def find_late_best_trials(
    study: Study, placed: Sequence[BestStep], share: float, *, decayed: float, material: float, alpha: float
) -> LateTrials:
    """Return the good trials whose best step lies in the last `share` of the steps.

    `decayed` is the largest final learning rate that counts as near zero, as a share of its peak. `material` is the smallest
    improvement that matters in the forecast for twice the steps, as a share of a trial's whole improvement, tested at level
    `alpha`.
    """
    late_bests = [p for p in placed if p.best_position > 1 - share]
    endings = [curve_tails.curve_end_before_decay(study, p.trial) for p in late_bests]
    rates = [final_rate_share(study, p.trial) for p in late_bests]
    near_zero = [_rate_ends_near_zero(study, p.trial, rate, decayed) for p, rate in zip(late_bests, rates, strict=True)]
    improving_endings = [e for e in endings if e is not None and e.is_improving(material, alpha)]
    gains = [_gain_in_last_part(study, p, share) for p in late_bests]
    is_advised_elsewhere, longer = curve_tails.needs_longer_training(study, alpha), None
    if 2 * len(improving_endings) > len(placed) and not is_advised_elsewhere:
        longer = round_up_steps(
            np.median([p.steps for p in late_bests]) * float(np.median([e.length_factor for e in improving_endings]))
        )
    return LateTrials(
        steps=tuple(late_bests),
        gain=float(np.median([gain for gain, _ in gains])),
        last_part_length=float(np.median([part for _, part in gains])),
        curve_endings=tuple(endings),
        rates=tuple(rates),
        decayed=2 * sum(near_zero) > len(late_bests),
        improving_count=len(improving_endings),
        recommended_steps=longer,
        is_length_already_advised=is_advised_elsewhere,
    )


def best_step_evidence(
    placed: Sequence[BestStep], caption: Message, lines: Mapping[str, float], rows: Sequence[tuple[str, MessagePart]]
) -> tuple[Evidence, ...]:
    """Return a histogram and a table of the best steps. `lines` maps labels to positions to mark in the histogram, and `rows`
    holds further rows of the table."""
    at = np.array([p.best_position for p in placed])
    counts, edges = np.histogram(at, bins=20, range=(0, 1))
    low, middle, high = (Percent(float(x), 1) for x in (at.min(), np.median(at), at.max()))
    places = say("{low} to {high}, median {middle}", low=low, high=high, middle=middle)
    return (
        HistogramEvidence(
            quantity="best step, as a share of the planned steps",
            caption=caption,
            edges=tuple(edges.tolist()),
            counts=tuple(counts.tolist()),
            lines=tuple(Line(value=value, label=label) for label, value in lines.items()),
        ),
        table(("best trials", len(at)), ("best steps, as a share of the training", places), *rows),
    )


def _rate_ends_near_zero(study: Study, trial: Trial, rate: float, decayed: float) -> bool:
    return rate < decayed if np.isfinite(rate) else schedules.read_schedule(study, trial).logged_kind in _SCHEDULES_TO_ZERO


def _gain_in_last_part(study: Study, placed: BestStep, late: float) -> tuple[float, float]:
    """Return (share of the trial's improvement, share of its steps) of the last part of training. The last part starts at the
    last evaluation before the final share `late` of the steps."""
    curve = study.cost_curve(placed.trial).finite
    after = (1 - late) * placed.steps
    start = int(max(curve.steps[curve.steps <= after], default=0))
    return gain_share_after(curve.steps, curve.values, after=after), 1 - start / placed.steps
