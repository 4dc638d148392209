"""Instability in one trial's loss: a rise or divergence at its start, a jump or divergence in mid training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from advisor.computed import computed
from advisor.computed.curves.overfit import is_of_acting
from advisor.computed.stability import instability, validation_check
from advisor.model.message import Message, Name, Number, Percent, say
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Study, Trial
from advisor.stats import jumps

MIN_EARLY = 3
"""Minimum points early in training that can show a rise: the first and two after it."""
_MIN_BEFORE = 5
"""Minimum points before a divergence that show that the loss had fallen."""
_LASTING = 10
"""Steps that a rise at the start must last; the default of the rules that use it."""
_STEADY = 9
"""A jump is over when the median of this many points is back at the level before it."""
_SHIFTS = 8
"""Maximum jumps of one loss that evaluations may explain before the search ends."""
_MAX_P = 0.05
"""Maximum p-value of one trial's instability."""
_MIN_OF_BEST = 0.02
"""Minimum rise, as a share of what the best trial gained."""
_MATERIAL = 0.1
"""Minimum rise or jump, as a share of what the trial gained; the default of the rules that use it."""


@dataclass(frozen=True, slots=True)
class Blowup:
    """The worst instability of a trial and its p-value."""

    trial: Trial
    metric: str
    """As logged."""
    points: int
    """Points that were judged; 0 if they are too few to call the trial stable."""
    p: float = 1.0
    """p-value among this trial's own points; 0 for a divergence."""
    share: float = 0.0
    """Size as a share of what the loss gained or had fallen; infinite for a divergence, 0 if negligible beside the best's gain."""
    step: int = 0
    event: Message = field(default_factory=lambda: Message(()))
    """What happened, to follow the name of the trial in a sentence."""
    before: float = math.nan
    """Level before, in the metric's own unit; NaN without one."""
    after: float = math.nan
    """Level after; NaN for a divergence."""
    limit: float = math.nan
    """The level that noise passes once in twenty trials; NaN without one."""
    subject: str = "loss"
    """`loss`, or `objective` if that is what showed it."""

    def sentence(self, at: Message | str = "") -> Message:
        """What happened to the trial, a sentence without its end; `at` is its learning rate, see `instability.Reach.at`."""
        name = Name(self.trial.name)
        return say("The {subject} of {trial}{at} {event}", subject=self.subject, trial=name, at=at, event=self.event)

    @property
    def levels(self) -> Message:
        """The levels before and after and the limit of noise, as a row of figures."""
        if not math.isfinite(self.limit):
            return say("not finite")
        before, after, limit = Number(self.before, 4), Number(self.after, 4), Number(self.limit, 4)
        return say("{before}, {after}, {limit}", before=before, after=after, limit=limit)


@computed
def at_start(study: Study, trial: Trial, lasting: int) -> Blowup | None:
    """The rise or divergence of the trial's loss early in training; None if it logged no loss.

    lasting: steps that a rise must last, or one point if points are further apart.
    """
    curves = instability.loss_curves(study, trial)
    if not curves:
        return None
    end = instability.early_end(study, trial)
    judged = [(n, c) for n, c in curves if _count(c, end) >= MIN_EARLY and _should_fall(study, n)]
    metric, curve = (judged or curves)[0]
    finite = curve.finite
    subject, sign = _subject(study, metric), _sign(study, metric)
    early = _count(curve, end)
    at = instability.diverged_step(study, trial)
    if at is not None and len(finite) and instability.diverged_early(study, trial, at):
        first = sign * float(finite.values[0])
        event = say("started at {first} and is not finite from {place} on", first=Number(first, 4), place=study.at(at))
        return Blowup(trial, metric, early, 0.0, math.inf, at, event, first, subject=subject)
    dense = _count(curve, min(end, instability.PROBE_STEPS))
    quiet = Blowup(trial, metric, dense if dense >= MIN_EARLY else 0, subject=subject)
    if not judged:
        return quiet
    steps = min(lasting, max(int(end - finite.steps[0]) // 5, 1))
    width = int(np.count_nonzero(finite.steps[1:early] <= finite.steps[0] + steps))
    rise = jumps.early_rise(finite.values, early, max(width, 1))
    if rise is None:
        return quiet
    step = int(finite.steps[rise.index])
    start, level, limit = sign * rise.start, sign * rise.level, sign * rise.limit
    went, instead = ("rose", "falling") if sign > 0 else ("fell", "rising")
    event = say(
        "{went} from {start} to {level} at {place} instead of {instead}",
        went=went,
        start=Number(start, 4),
        level=Number(level, 4),
        place=study.at(step),
        instead=instead,
    )
    share = rise.share if _matters(study, metric, rise.level - rise.start) else 0.0
    return Blowup(trial, metric, quiet.points, rise.p, share, step, event, start, level, limit, subject)


def _count(curve: Curve, end: float) -> int:
    """Finite points up to step `end`."""
    return int(np.searchsorted(curve.finite.steps, end, side="right"))


@computed
def in_mid_training(study: Study, trial: Trial) -> Blowup | None:
    """The largest jump, or the divergence, of the trial's loss after early training; None if its curves are too short to judge."""
    curves = instability.loss_curves(study, trial)
    divergence = _late_divergence(study, trial)
    if divergence is not None:
        return divergence
    judged = [(n, c.finite) for n, c in curves if len(c.finite) >= jumps.MIN_POINTS and _should_fall(study, n)]
    if not judged:
        return None
    metric, curve = judged[0]
    first = int(np.searchsorted(curve.steps, instability.early_end(study, trial), side="right"))
    rates = instability.rates_at(study, trial, curve.steps.astype(np.float64))
    jump = _largest_that_harmed(curve, first, rates, validation_check.of(study, trial, metric))
    subject, sign = _subject(study, metric), _sign(study, metric)
    if jump is None:
        return Blowup(trial, metric, len(curve), subject=subject)
    before, after, limit = sign * jump.before, sign * jump.after, sign * jump.limit
    step = int(curve.steps[jump.index])
    peak = sign * float(curve.values[jump.index : jump.index + jump.points].max())
    event = _jump_event(jump, sign, peak, study.at(step))
    share = jump.share if jump.log or _matters(study, metric, jump.after - jump.before) else 0.0
    return Blowup(trial, metric, len(curve), jump.p, share, step, event, before, after, limit, subject)


def _jump_event(jump: jumps.Jump, sign: float, peak: float, place: str) -> Message:
    """The sentence about a jump; `peak` is its worst point in the metric's own unit."""
    before, after = sign * jump.before, sign * jump.after
    went, extreme = ("jumped", "peak") if sign > 0 else ("fell", "lowest")
    to = say("{after}", after=Number(after, 4))
    # The level after a jump is a median of several points: the picture shows the first of them higher.
    if abs(peak - after) > _MATERIAL * abs(after - before):
        to = say("about {after} ({extreme} {peak})", after=to, extreme=extreme, peak=Number(peak, 4))
    fall = "its fall on a log scale" if jump.log else "what it had gained"
    if jump.share <= 1:
        undone = say("{share} of {fall}", share=Percent(jump.share), fall=fall)
    elif jump.log:
        undone = say("all that it had gained and more")
    else:
        undone = say("{times} times {fall}", times=Number(jump.share, 2), fall=fall)
    return say(
        "{went} from {before} to {to} at {place}, which undid {undone}",
        went=went,
        before=Number(before, 4),
        to=to,
        place=place,
        undone=undone,
    )


def _largest_that_harmed(
    curve: Curve, first: int, rates: FloatArray | None, evaluations: list[Curve]
) -> jumps.Jump | None:
    """The largest jump of a loss that evaluations do not refute: if they stay as good, only what the loss measures changed."""
    values = curve.values.copy()
    for _ in range(_SHIFTS):
        jump = jumps.largest_jump(values, first, rates)
        if jump is None or jump.p > _MAX_P or not evaluations:
            return jump
        steady = max(jump.points, _STEADY)
        lower = np.flatnonzero(jumps.levels(values[jump.index :], steady) <= jump.before)
        end = min(jump.index + int(lower[0]) + (steady - 1) // 2, len(values)) if len(lower) else len(values)
        if not validation_check.unharmed(evaluations, int(curve.steps[jump.index]), int(curve.steps[end - 1])):
            return jump
        shifted = values[jump.index : end]
        values[jump.index : end] = (
            shifted * (jump.before / jump.after) if jump.log else shifted - (jump.after - jump.before)
        )
    return None


def _matters(study: Study, metric: str, rise: float) -> bool:
    """Whether the rise counts beside what the best trial gained: for a trial that learned nothing, any rise is a large share."""
    for best in study.ranked()[:1]:
        curve = dict(instability.loss_curves(study, best)).get(metric)
        if curve is not None and len(values := curve.finite.values) >= 3:
            return rise >= _MIN_OF_BEST * (float(values[0]) - float(jumps.levels(values, 3).min()))
    return True


def unstable(study: Study, trial: Trial) -> bool:
    """Whether the trial's loss blew up at its start or jumped in mid training."""
    both = at_start(study, trial, _LASTING), in_mid_training(study, trial)
    return any(b is not None and b.p <= _MAX_P and b.share >= _MATERIAL for b in both)


def _late_divergence(study: Study, trial: Trial) -> Blowup | None:
    """A divergence after early training, of a loss that had fallen until then."""
    at = instability.diverged_step(study, trial)
    if at is None or instability.diverged_early(study, trial, at):
        return None
    for metric, curve in instability.loss_curves(study, trial):
        before = curve.finite.values[curve.finite.steps < at]
        if len(before) >= _MIN_BEFORE and float(np.median(before[-3:])) < before[0]:
            event = say("is not finite from {place} on, after it had improved", place=study.at(at))
            return Blowup(trial, metric, len(curve), 0.0, math.inf, at, event, subject=_subject(study, metric))
    return None


def _subject(study: Study, metric: str) -> str:
    objective = metric == study.spec.objective.metric and study.signals.get("valid_loss") != metric
    return "objective" if objective else "loss"


def _should_fall(study: Study, metric: str) -> bool:
    """Whether the metric, as a cost, falls in a training that works: when a policy is trained, only the objective has to."""
    objective = study.spec.objective.metric
    return metric == objective or not is_of_acting(objective)


def _sign(study: Study, metric: str) -> float:
    """The factor from a cost of the metric to its own value: -1 for an objective that is maximised."""
    return -1.0 if metric == study.spec.objective.metric and not study.minimize else 1.0


@dataclass(frozen=True, slots=True)
class Unrest:
    """The instability of several trials, at their start or in mid training."""

    judged: int
    """Trials whose loss could be judged."""
    unstable: tuple[Blowup, ...]
    """The worst of each unstable trial, surest first."""
    p: float
    """Probability that noise alone makes any of the trials seem as unstable as the surest one."""


def unrest(study: Study, trials: Sequence[Trial], *, lasting: int, material: float, false_alarms: float) -> Unrest:
    """The unstable trials; the promised level is shared among all trials and between the two kinds of instability.

    lasting, material: as the thresholds of the rules.
    """
    both = ((at_start(study, t, lasting), in_mid_training(study, t)) for t in trials)
    seen = [[b for b in pair if b is not None and (b.points or b.p < 1)] for pair in both]
    judged = sum(map(bool, seen))
    tests = 2 * max(judged, 1)
    shaken = [[b for b in pair if b.p * tests <= false_alarms and b.share >= material] for pair in seen]
    worst = sorted(
        (min(s, key=lambda b: (b.p, -b.share)) for s in shaken if s), key=lambda b: (b.p, -b.share, b.trial.index)
    )
    return Unrest(judged, tuple(worst), min(worst[0].p * tests, 1.0) if worst else 1.0)
