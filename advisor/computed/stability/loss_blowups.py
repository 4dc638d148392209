"""Instability in one trial's loss: a rise or divergence early in training, a jump or divergence later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import binom

from advisor.computed import computed
from advisor.computed.stability import instability, validation_check
from advisor.model.message import Message, Name, Number, Percent, say
from advisor.model.reading import Kind
from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.model.study import Curve, Study, Trial
from advisor.stats import jumps

MIN_EARLY = 3
"""Minimum number of points early in training to detect a rise: the first point and two after it."""
_MIN_BEFORE = 5
"""Minimum number of points before a divergence to conclude that the loss had fallen before it."""
_LASTING = 10
"""Minimum number of steps that an early rise must last; the default of the rules."""
_STEADY = 9
"""Number of points in the running median that ends a jump when it returns to the level before the jump."""
_MAX_EXPLAINED = 16
"""Maximum number of jumps of one loss to leave out because evaluations or the other trials explain them."""
_MAX_P = 0.05
"""Maximum p-value of one trial's instability."""
_MIN_OF_BEST = 0.02
"""Minimum rise of a loss, as a share of the best trial's gain."""
_FREE_LOSSES: frozenset[Kind] = frozenset(("reinforcement-learning", "gan", "self-supervised"))
"""Kinds of workload whose training losses may rise although all is well; only the objective of such a study is judged."""
_MATERIAL = 0.1
"""Minimum rise or jump of a loss, as a share of the trial's own gain; the default of the rules."""


@dataclass(frozen=True, slots=True)
class Blowup:
    """The most severe instability of one trial, with its p-value."""

    trial: Trial
    metric: str
    """Name of the metric, as logged."""
    points: int
    """Number of points that were judged; 0 if there are too few points to call the trial stable."""
    p: float = 1.0
    """p-value of the instability among this trial's own points; 0 for a divergence."""
    share: float = 0.0
    """Size of the rise as a share of the loss's gain or fall; inf for a divergence, 0 if negligible against the best gain."""
    step: int = 0
    event: Message = field(default_factory=lambda: Message(()))
    """Clause that describes the instability and follows the name of the trial."""
    before: float = math.nan
    """Level of the metric before the instability, in the metric's unit; NaN if unknown."""
    after: float = math.nan
    """Level of the metric after the instability, in the metric's unit; NaN for a divergence."""
    limit: float = math.nan
    """Level that noise exceeds in one of 20 trials; NaN if unknown."""
    subject: str = "loss"
    """The curve that shows the instability, `loss` or `objective`."""

    def sentence(self, at: Message | str = "") -> Message:
        """Return a sentence about the instability without its end; `at` is the learning rate from `instability.Reach.at`."""
        name = Name(self.trial.name)
        return say("The {subject} of {trial}{at} {event}", subject=self.subject, trial=name, at=at, event=self.event)

    @property
    def levels(self) -> Message:
        """Return the levels before and after the instability and the noise limit, as a table row."""
        if not math.isfinite(self.limit):
            return say("not finite")
        before, after, limit = Number(self.before, 4), Number(self.after, 4), Number(self.limit, 4)
        return say("{before}, {after}, {limit}", before=before, after=after, limit=limit)


@computed
def at_start(study: Study, trial: Trial, lasting: int) -> Blowup | None:
    """Return the rise or divergence of the trial's loss early in training; None if the trial logged no loss.

    lasting: minimum number of steps that a rise must last; one point if points are further apart.
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
    """Return the number of finite points up to step `end`."""
    return int(np.searchsorted(curve.finite.steps, end, side="right"))


@computed
def in_mid_training(study: Study, trial: Trial) -> Blowup | None:
    """Return the largest jump or the divergence of the trial's loss after early training; None if its curves are too short."""
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
    jump = _largest_own_jump(study, trial, metric, first, rates)
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
    """Return a sentence about the jump; `peak` is the worst point of the jump in the metric's own unit."""
    before, after = sign * jump.before, sign * jump.after
    went, extreme = ("jumped", "peak") if sign > 0 else ("fell", "lowest")
    to = say("{after}", after=Number(after, 4))
    # The level after a jump is a median of several points, so the first of them is usually higher in the plot.
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


def _largest_own_jump(
    study: Study, trial: Trial, metric: str, first: int, rates: FloatArray | None
) -> jumps.Jump | None:
    """Return the most significant jump of the trial's loss that is due to neither the loss's definition nor a schedule or data.

    If evaluations do not get worse, only the definition of the loss changed; if most trials rise at the same step, it is a step of
    the schedule or of the data. Such a jump is left out, and the next one counts.
    """
    curve = dict(instability.loss_curves(study, trial))[metric].finite
    evaluations = validation_check.of(study, trial, metric)
    explained: list[jumps.Jump] = []
    for _ in range(_MAX_EXPLAINED):
        jump = _largest(curve.values, first, rates, explained, lasting=study.kind == "reinforcement-learning")
        if jump is None or jump.p > _MAX_P:
            return jump
        steady = max(jump.points, _STEADY)
        lower = np.flatnonzero(jumps.levels(curve.values[jump.index :], steady) <= jump.before)
        end = min(jump.index + int(lower[0]) + (steady - 1) // 2, len(curve)) if len(lower) else len(curve)
        step = int(curve.steps[jump.index])
        unharmed = validation_check.unharmed(evaluations, step, int(curve.steps[end - 1]))
        if not unharmed and not _is_shared(study, trial, metric, step, jump.points):
            return jump
        explained.append(jump)
    return None


def _largest(
    values: FloatArray, first: int, rates: FloatArray | None, explained: Sequence[jumps.Jump], *, lasting: bool
) -> jumps.Jump | None:
    """Return the most significant jump or, without one, a collapse that lasts. lasting: only a collapse; rewards often dip."""
    jump = None if lasting else jumps.largest_jump(values, first, rates, explained)
    if jump is not None and jump.p <= _MAX_P:
        return jump
    collapse = jumps.lasting_jump(values, first, explained)
    return collapse if collapse is not None and collapse.p <= _MAX_P else jump


def _is_shared(study: Study, trial: Trial, metric: str, step: int, points: int) -> bool:
    """Return True if most other trials also rise at this step, or at this share of their length, more often than by chance."""
    own = study.metric(trial, metric).steps
    part = (step - own[0]) / max(own[-1] - own[0], 1)
    steep, chances = np.zeros((len(study.trials), 2), dtype=np.bool_), []
    for other in study.trials:
        mask, steps = _steep_rises(study, other, metric, points)
        if other.index == trial.index or not len(steps) or not mask.any():
            continue
        chances.append(float(mask.mean()))
        for column, at in enumerate((step, steps[0] + part * (steps[-1] - steps[0]))):
            nearest = int(np.searchsorted(steps, at))
            steep[other.index, column] = nearest < len(steps) and mask[nearest]
    shared = int(steep.sum(axis=0).max())
    chance = 2 * float(binom.sf(shared - 1, len(chances), np.mean(chances))) if chances else 1.0
    return 2 * shared >= len(chances) and chance <= _MAX_P


@computed
def _steep_rises(study: Study, trial: Trial, metric: str, points: int) -> tuple[BoolArray, IntArray]:
    """Return (mask of the steepest rises of the trial's loss, steps of its finite points)."""
    curve = dict(instability.loss_curves(study, trial)).get(metric)
    if curve is None:
        return np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64)
    return jumps.steep_rises(curve.finite.values, points), curve.finite.steps


def _matters(study: Study, metric: str, rise: float) -> bool:
    """Return True if the rise is material against the best trial's gain: if a trial learned nothing, any rise is a large share."""
    for best in study.ranked()[:1]:
        curve = dict(instability.loss_curves(study, best)).get(metric)
        if curve is not None and len(values := curve.finite.values) >= 3:
            return rise >= _MIN_OF_BEST * (float(values[0]) - float(jumps.levels(values, 3).min()))
    return True


def unstable(study: Study, trial: Trial) -> bool:
    """Return True if the trial's loss blew up early in training or jumped later."""
    both = at_start(study, trial, _LASTING), in_mid_training(study, trial)
    return any(b is not None and b.p <= _MAX_P and b.share >= _MATERIAL for b in both)


def _late_divergence(study: Study, trial: Trial) -> Blowup | None:
    """Return a divergence after early training, provided that the loss had fallen before it; else None."""
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


def is_free(study: Study) -> bool:
    """Return True if the training losses of this kind of workload may rise although all is well."""
    return study.kind in _FREE_LOSSES


def _should_fall(study: Study, metric: str) -> bool:
    """Return True if the metric, as a cost, falls in healthy training: the objective, and, for most kinds of workload, any loss."""
    return metric == study.spec.objective.metric or not is_free(study)


def _sign(study: Study, metric: str) -> float:
    """Return the sign that converts a cost to the metric's own value: -1 for a maximised objective, else 1."""
    return -1.0 if metric == study.spec.objective.metric and not study.minimize else 1.0


@dataclass(frozen=True, slots=True)
class Unrest:
    """The instability of several trials, either early in training or later."""

    judged: int
    """Number of trials with enough points of the loss to judge."""
    unstable: tuple[Blowup, ...]
    """The most severe instability of each unstable trial, most significant first."""
    p: float
    """p-value: probability that noise alone makes any trial seem as unstable as the most significant one."""


def unrest(study: Study, trials: Sequence[Trial], *, lasting: int, material: float, false_alarms: float) -> Unrest:
    """Return the unstable trials at level `false_alarms`, shared among all trials and the two kinds of instability.

    lasting, material: thresholds of the rules, under the same names.
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
