"""What one trial's loss shows of instability: a rise or a divergence at its start, a jump or a divergence in mid training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.curves.overfit import is_of_acting
from advisor.computed.stability import instability, validation_check
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Study, Trial
from advisor.stats import jumps

FEWEST_EARLY = 3
"""Points early in training that can show a rise: the first, and two after it."""
_FEWEST_BEFORE = 5
"""Points before a divergence that show that the loss had fallen."""
_LASTING = 10
_STEADY = 9
"""Points whose median must be back at the level before a jump for it to be over."""
_SHIFTS = 8
"""Jumps of one loss that may turn out to be none before it is given up."""
_SURE = 0.05
_TRIFLE = 0.02
_MATERIAL = 0.1
"""As the thresholds of the rules of early and mid instability, of one trial alone."""


@dataclass(frozen=True, slots=True)
class Blowup:
    """The worst that was seen of a trial, and how likely chance alone would show it."""

    trial: Trial
    metric: str
    """As logged."""
    points: int
    """Points that were judged; 0 where they are too few to call the trial stable."""
    p: float = 1.0
    """p-value among this trial's own points; 0 for a divergence."""
    share: float = 0.0
    """Size as a share of what the loss gained or had fallen; infinite for a divergence, 0 for a trifle beside the best's gain."""
    step: int = 0
    said: str = ""
    """What happened, to follow the name of the trial in a sentence."""
    figures: str = ""
    """The levels before and after, and the limit of noise."""
    limit: float = math.nan
    """The level that noise passes once in twenty trials, in the metric's own unit; NaN without one."""
    subject: str = "loss"
    """`loss`, or `objective` where that is what showed it."""


@computed
def at_start(study: Study, trial: Trial, lasting: int) -> Blowup | None:
    """The rise or divergence of the trial's loss early in training; None if it logged none.

    lasting: steps that a rise must last; one point where fewer steps apart were not logged.
    """
    curves = instability.loss_curves(study, trial)
    if not curves:
        return None
    end = instability.early_end(study, trial)
    judged = [(n, c) for n, c in curves if _count(c, end) >= FEWEST_EARLY and _should_fall(study, n)]
    metric, curve = (judged or curves)[0]
    finite = curve.finite
    subject, sign = _subject(study, metric), _sign(study, metric)
    early = _count(curve, end)
    at = instability.diverged_step(study, trial)
    if at is not None and len(finite) and instability.diverged_early(study, trial, at):
        said = f"was {sign * finite.values[0]:.4g} at first and not finite from {study.at(at)} on"
        return Blowup(trial, metric, early, 0.0, math.inf, at, said, "not finite", subject=subject)
    dense = _count(curve, min(end, instability.PROBE_STEPS))
    quiet = Blowup(trial, metric, dense if dense >= FEWEST_EARLY else 0, subject=subject)
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
    said = f"{went} from {start:.4g} to {level:.4g} at {study.at(step)} instead of {instead}"
    figures = f"{start:.4g}, {level:.4g}, {limit:.4g}"
    share = rise.share if _matters(study, metric, rise.level - rise.start) else 0.0
    return Blowup(trial, metric, quiet.points, rise.p, share, step, said, figures, limit, subject)


def _count(curve: Curve, end: float) -> int:
    """Finite points up to step `end`."""
    return int(np.searchsorted(curve.finite.steps, end, side="right"))


@computed
def in_mid_training(study: Study, trial: Trial) -> Blowup | None:
    """The largest jump, or the divergence, of the trial's loss after early training; None if its curves are too short to judge."""
    curves = instability.loss_curves(study, trial)
    found = _late_divergence(study, trial)
    if found is not None:
        return found
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
    fall = "its fall on a log scale" if jump.log else "what it had gained"
    more = "all that it had gained and more" if jump.log else f"{jump.share:.1f} times {fall}"
    undone = f"{jump.share:.0%} of {fall}" if jump.share <= 1 else more
    went, end = ("jumped", "peak") if sign > 0 else ("fell", "lowest")
    peak = sign * float(curve.values[jump.index : jump.index + jump.points].max())
    # The level after a jump is that of several points: a reader sees the first of them higher in the picture.
    higher = abs(peak - after) > _MATERIAL * abs(after - before)
    to = f"about {after:.4g} ({end} {peak:.4g})" if higher else f"{after:.4g}"
    said = f"{went} from {before:.4g} to {to} at {study.at(step)}, which undid {undone}"
    figures = f"{before:.4g}, {after:.4g}, {limit:.4g}"
    share = jump.share if jump.log or _matters(study, metric, jump.after - jump.before) else 0.0
    return Blowup(trial, metric, len(curve), jump.p, share, step, said, figures, limit, subject)


def _largest_that_harmed(
    curve: Curve, first: int, rates: FloatArray | None, witnesses: list[Curve]
) -> jumps.Jump | None:
    """The largest jump of a loss across which evaluations got worse, or could not tell: the others changed what it measures."""
    values = curve.values.copy()
    for _ in range(_SHIFTS):
        jump = jumps.largest_jump(values, first, rates)
        if jump is None or jump.p > _SURE or not witnesses:
            return jump
        steady = max(jump.points, _STEADY)
        lower = np.flatnonzero(jumps.levels(values[jump.index :], steady) <= jump.before)
        end = min(jump.index + int(lower[0]) + (steady - 1) // 2, len(values)) if len(lower) else len(values)
        if not validation_check.unharmed(witnesses, int(curve.steps[jump.index]), int(curve.steps[end - 1])):
            return jump
        shifted = values[jump.index : end]
        values[jump.index : end] = (
            shifted * (jump.before / jump.after) if jump.log else shifted - (jump.after - jump.before)
        )
    return None


def _matters(study: Study, metric: str, rise: float) -> bool:
    """Whether the rise is worth a word beside what the best trial gained: of a trial that learned nothing, a trifle is much."""
    for best in study.ranked()[:1]:
        curve = dict(instability.loss_curves(study, best)).get(metric)
        if curve is not None and len(values := curve.finite.values) >= 3:
            return rise >= _TRIFLE * (float(values[0]) - float(jumps.levels(values, 3).min()))
    return True


def unstable(study: Study, trial: Trial) -> bool:
    """Whether the trial's loss blew up at its start or jumped in mid training: then that is what is wrong with it."""
    seen = at_start(study, trial, _LASTING), in_mid_training(study, trial)
    return any(b is not None and b.p <= _SURE and b.share >= _MATERIAL for b in seen)


def _late_divergence(study: Study, trial: Trial) -> Blowup | None:
    """A divergence after early training, of a loss that had fallen until then."""
    at = instability.diverged_step(study, trial)
    if at is None or instability.diverged_early(study, trial, at):
        return None
    for metric, curve in instability.loss_curves(study, trial):
        before = curve.finite.values[curve.finite.steps < at]
        if len(before) >= _FEWEST_BEFORE and float(np.median(before[-3:])) < before[0]:
            said = f"was not finite from {study.at(at)} on, after it had improved"
            subject = _subject(study, metric)
            return Blowup(trial, metric, len(curve), 0.0, math.inf, at, said, "not finite", subject=subject)
    return None


def _subject(study: Study, metric: str) -> str:
    objective = metric == study.spec.objective.metric and study.signals.get("valid_loss") != metric
    return "objective" if objective else "loss"


def _should_fall(study: Study, metric: str) -> bool:
    """Whether the metric, as a cost, falls in a training that works: where a policy is trained, the objective but no loss need."""
    objective = study.spec.objective.metric
    return metric == objective or not is_of_acting(objective)


def _sign(study: Study, metric: str) -> float:
    """What turns a cost of the metric into its own value: -1 for an objective that is maximised."""
    return -1.0 if metric == study.spec.objective.metric and not study.minimize else 1.0


def norm_there(study: Study, blowup: Blowup) -> float | None:
    """The largest ratio of the gradient norm to its running median in the five logged points around it; None without norms."""
    curve = study.peaks(blowup.trial, "grad_norm").finite
    keep = curve.values > 0
    found = jumps.outliers(curve.values[keep], 0.5, 1.0)
    if found is None:
        return None
    at = int(np.searchsorted(curve.steps[keep], blowup.step))
    around = found.ratios[max(at - 3, 0) : at + 2]
    return float(around.max()) if len(around) else None


@dataclass(frozen=True, slots=True)
class Unrest:
    """The instability of several trials, at their start or in mid training."""

    seen: int
    """Trials whose loss could be judged."""
    unstable: tuple[Blowup, ...]
    """The worst of each unstable trial, surest first."""
    p: float
    """How often noise alone would make one of all the trials seem as unstable as the surest."""


def unrest(study: Study, trials: Sequence[Trial], *, lasting: int, material: float, false_alarms: float) -> Unrest:
    """Which of the trials are unstable, with the promise shared among them and between the two ways of being so.

    lasting, material: steps that a rise at the start must last, and smallest size of a rise or jump, as in the rules
    `stability-early` and `stability-mid`.
    """
    found = [
        [b for b in (at_start(study, t, lasting), in_mid_training(study, t)) if b is not None and (b.points or b.p < 1)]
        for t in trials
    ]
    judged = [both for both in found if both]
    tests = 2 * max(len(judged), 1)
    shaken = [[b for b in both if b.p * tests <= false_alarms and b.share >= material] for both in judged]
    worst = sorted(
        (min(s, key=lambda b: (b.p, -b.share)) for s in shaken if s), key=lambda b: (b.p, -b.share, b.trial.index)
    )
    return Unrest(len(judged), tuple(worst), min(worst[0].p * tests, 1.0) if worst else 1.0)
