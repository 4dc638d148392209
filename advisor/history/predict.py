"""What advice predicts of the study that follows it: made where the next studies are written, judged once one of them has run.

A prediction is of one rule, for a change that the study really makes. What it states as its probability comes from the test or the
interval that the rule rests on; where there is none it states none. Each rule names what its advice predicts in `predicts`.

Simulated (quadratic responses of 1 to 3 hyperparameters, half of them with a cliff, 12 to 32 trials, 172 first rounds): a widened
range brought the best where it was predicted in 56 % of 84 cases, 65 % stated on average; below 0.5 stated in 23 % of 26, from 0.7
on in 82 % of 40. Cut ranges failed as little as predicted in 32 of 32, narrowed ones were as good in 22 of 25, longer training
reached its value in 8 of 8, and what was said to cost nothing cost nothing in 14 of 15.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.computed.curves import curve_tails, noise
from advisor.computed.decision import repeats
from advisor.computed.space import failures
from advisor.engine.rule import Expectation, Rule
from advisor.history import forecast
from advisor.history.pool import lies_in
from advisor.model.change import AddParameter, Change, FixParameter, RunPlan, SetField, SetRange, SetSchedule
from advisor.model.finding import Finding, MissingData, Verdict
from advisor.model.prediction import (
    BestBeyond,
    BestReaches,
    Expected,
    Prediction,
    Settled,
    ShareOfTrials,
    SpreadWithin,
    significant,
)
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.base import base
from advisor.planning.designs.catalogue import PLANS
from advisor.stats import trend

SURE = 0.9
"""Probability of the intervals and bounds that are predicted; the field's custom."""
SUREST = 0.99
"""Nothing is predicted with more certainty: models of noise are not that good."""
MOST = 8
"""Predictions of one study: more than a few dozen lines in a study file would be read by nobody."""

_ROUNDING = 1e-9
_ENOUGH = 5
"""Trials that say how good others drawn like them are; of fewer the worst would be the bound."""

Made = tuple[Expected, float | None]
"""What is expected, and with what probability."""


@dataclass(frozen=True)
class _Case:
    """What a prediction is made from: the study, what was found in it, and the study that follows."""

    study: Study
    finding: Finding
    after: StudySpec


def predicted(
    study: Study, verdicts: Sequence[Verdict], specs: Sequence[StudySpec], rules: Iterable[Rule] = ()
) -> tuple[StudySpec, ...]:
    """The next studies, each with what the advice that it follows predicts of it, as the rules declare in `predicts`."""
    expectations = {rule.rule_id(): rule.predicts for rule in rules}
    findings = [f for v in verdicts for f in v.findings]
    found, before = [], base(study)
    for spec in specs:
        if spec.probe is not None:
            found.append(spec)
            continue
        follows = [f for f in findings if any(_follows(study, c, before, spec) for c in f.changes)]
        made = [p for f in follows for p in _of_finding(_Case(study, f, spec), expectations.get(f.rule, "settled"))]
        made += _of_repeats(study, spec)
        found.append(spec.model_copy(update={"predictions": tuple(_rounded(p) for p in made[:MOST])}))
        before = spec
    return tuple(found)


def _follows(study: Study, change: Change, before: StudySpec, after: StudySpec) -> bool:
    """Whether the later study makes the change, or is or makes what the plan designs that is asked for."""
    if not isinstance(change, RunPlan):
        return is_made(change, before, after)
    made = PLANS[change.plan](change, study, before)
    if isinstance(made, StudySpec):
        return made.goal == after.goal
    return any(is_made(c, before, after) for c in made)


def _of_finding(case: _Case, expectation: Expectation) -> Iterator[Prediction]:
    finding = case.finding
    made = _EXPECTATIONS[expectation](case)
    if made is not None:
        yield Prediction(rule=finding.rule, subject=finding.subject, expects=made[0], probability=made[1])


def _of_repeats(study: Study, spec: StudySpec) -> Iterator[Prediction]:
    if spec.searched or (spec.seeds or 1) < 2 or (made := _spread(study, spec)) is None:
        return
    yield Prediction(rule="reseed", subject=study.spec.objective.metric, expects=made[0], probability=made[1])


def _rounded(prediction: Prediction) -> Prediction:
    update = {
        name: significant(value, 6 if name in ("value", "than", "end") else 3)
        for name, value in prediction.expects
        if isinstance(value, float)
    }
    p = prediction.probability
    return prediction.model_copy(
        update={
            "expects": prediction.expects.model_copy(update=update),
            "probability": None if p is None else round(min(p, SUREST), 3),
        }
    )


# --- was the change made? ---------------------------------------------------------------------------------------------------------


def is_made(change: Change, before: StudySpec, after: StudySpec) -> bool:
    """Whether the later study has the change, as a whole or on one side of a range, and the earlier one has not."""
    if isinstance(change, SetRange):
        old, new = before.parameters.get(change.parameter), after.parameters.get(change.parameter)
        if new is None or not new.numeric:
            return False
        sides = [("low", change.low), ("high", change.high), ("scale", change.scale)]
        return any(getattr(new, s) == v and (old is None or getattr(old, s) != v) for s, v in sides)
    if isinstance(change, FixParameter):
        old, new = before.parameters.get(change.parameter), after.parameters.get(change.parameter)
        return new is not None and new.value == change.value and (old is None or old.value != change.value)
    if isinstance(change, AddParameter):
        return change.name in after.searched and change.name not in before.searched
    if isinstance(change, SetField):
        return bool(change.value == getattr(after, change.field) != getattr(before, change.field))
    if isinstance(change, SetSchedule):
        old_schedule, new_schedule = before.schedule or {}, after.schedule or {}
        return any(new_schedule.get(k) == v and old_schedule.get(k) != v for k, v in change.schedule.items())
    return False


# --- what each rule predicts ------------------------------------------------------------------------------------------------------


def _beyond(case: _Case) -> Made | None:
    """The best of the next study lies beyond the old end, and is better than what is within it."""
    study, finding, after = case.study, case.finding, case.after
    name, old = finding.subject, study.spec.parameters.get(finding.subject or "")
    new = after.parameters.get(name or "")
    if name is None or finding.side is None or old is None or new is None or old.low is None or old.high is None:
        return None
    end = old.low if finding.side == "low" else old.high
    if not new.numeric or not new.contains(end) or end in (new.low, new.high):
        return None
    than = _best(study) if _alike(study.spec, after) else None
    expects = BestBeyond(
        parameter=name,
        side=finding.side,
        end=end,
        than=than,
        noise=_noise(study),
    )
    return expects, forecast.chance_beyond(study, after, expects)


def _longer(case: _Case) -> Made | None:
    """The value that the end of the best curves promises at the new length, by the lower end of its 90 % interval.

    The next study draws other settings, of which the best may be less lucky: so much is taken off as well.
    """
    study, finding, after = case.study, case.finding, case.after
    try:
        judged = curve_tails.best_endings(study, curve_tails.BEST, curve_tails.REACH)
    except MissingData:
        return None
    firing = [e for e in judged if e.trial.id in finding.trials] or judged
    middle = sorted((e.end for e in firing), key=lambda end: end.forecast)[len(firing) // 2]
    part = middle.part_of_forecast((after.max_train_steps or 0) / curve_tails.typical_steps(study, firing))
    curve, sure = study.cost_curve(study.ranked()[0]).finite, (1 + SURE) / 2
    low = max(middle.forecast_interval(SURE)[0], 0.0) * part
    least, likely = (trend.cost_after(curve.steps, curve.values, s) for s in (low, middle.forecast * part))
    best = float(curve.values.min())
    least += _of_other_draws(study, after, sure) - best
    value, expected, than = (study.objective_value(cost) for cost in (least, likely, best))
    return BestReaches(value=value, expected=expected, than=than), sure


def _no_worse(case: _Case) -> Made | None:
    """The best value stays, of fewer steps or without a hyperparameter that did not matter, within the luck of other draws."""
    study = case.study
    best, sd = _best(study), _noise(study)
    if best is None:
        return None
    band = float(stats.norm.ppf(SURE)) * math.sqrt(2) * sd
    cost = max(_of_other_draws(study, case.after, SURE), (best if study.minimize else -best) + band)
    return BestReaches(value=study.objective_value(cost), expected=best, than=best), SURE


def _of_other_draws(study: Study, after: StudySpec, sure: float) -> float:
    """The cost that as many trials as the next study has, drawn again like those so far, reach with this probability.

    Of those so far that lie in the next space, if there are enough of them.
    """
    ended = [t for t in study.trials if study.ended[t.index]]
    inside = [t for t in ended if lies_in(after, t.params)]
    chosen = inside if len(inside) >= _ENOUGH else ended
    costs = np.sort([study.costs[t.index] if study.feasible[t.index] else np.inf for t in chosen])
    missed = (1 - np.arange(1, len(costs) + 1) / len(costs)) ** (after.trials or len(ended))
    worst = float(costs[int(np.argmax(missed <= 1 - sure))])
    return worst if math.isfinite(worst) else float(costs[np.isfinite(costs)].max())


def _fewer_failures(case: _Case) -> Made | None:
    """The share of failures of the trials that lie in the next space, as far as so many new ones may exceed it."""
    study, after = case.study, case.after
    if not _within(study.spec, after):
        return None
    failed = failures.failures(study).any
    ended = [t for t in study.trials if study.ended[t.index]]
    was = sum(bool(failed[t.index]) for t in ended) / max(len(ended), 1)
    inside = [t for t in ended if lies_in(after, t.params)]
    bound, sure = _bound(sum(bool(failed[t.index]) for t in inside), len(inside), after.trials or len(ended), was)
    return ShareOfTrials(of="failed", at_most=bound, was=was), sure


def _denser(case: _Case) -> Made | None:
    """The share of trials that are better than the old median, at least as far as so many new ones may fall below it."""
    study, after = case.study, case.after
    fine = study.ranked()
    if not fine or not _alike(study.spec, after) or not _within(study.spec, after):
        return None
    middle = float(np.median(study.costs[[t.index for t in fine]]))
    ended = [t for t in study.trials if study.ended[t.index]]
    good = {t.index for t in fine if study.costs[t.index] <= middle}
    inside = [t for t in ended if lies_in(after, t.params)]
    was = len(good) / len(ended)
    worse = sum(t.index not in good for t in inside)
    bound, sure = _bound(worse, len(inside), after.trials or len(ended), 1 - was)
    value = study.objective_value(middle)
    return ShareOfTrials(of="better", value=value, at_least=1 - bound, was=was), sure


def _spread(study: Study, spec: StudySpec) -> Made | None:
    """The standard deviation of new repeats: by that of earlier ones (F), else at least what the luck of the step brings."""
    freedom = (spec.seeds or 1) - 1
    variance = repeats.trial_variance(repeats.settings(study))
    tail = (1 - SURE) / 2
    if variance is not None and variance[0] > 0:
        low, high = (math.sqrt(float(stats.f.ppf(q, freedom, variance[1]))) * variance[0] for q in (tail, 1 - tail))
        return SpreadWithin(low=low, high=high), SURE
    steps = noise.of_steps(study)
    if not steps > 0:
        return None
    return SpreadWithin(low=steps * math.sqrt(float(stats.chi2.ppf(1 - SURE, freedom)) / freedom)), SURE


def _settled(case: _Case) -> Made | None:
    return Settled(side=case.finding.side, was=str(case.finding.message)), None


_EXPECTATIONS: Mapping[Expectation, Callable[[_Case], Made | None]] = {
    "settled": _settled,
    "best-beyond": _beyond,
    "longer-reaches": _longer,
    "no-worse": _no_worse,
    "fewer-failures": _fewer_failures,
    "denser": _denser,
}


# --- what they share --------------------------------------------------------------------------------------------------------------


def _best(study: Study) -> float | None:
    ranked = study.ranked()
    return study.objective_value(float(study.costs[ranked[0].index])) if ranked else None


def _noise(study: Study) -> float:
    """Standard deviation of one result by luck: between seeds where a setting was repeated, else of the step."""
    found, best = noise.of_seeds(study)[0] or noise.of_steps(study), abs(_best(study) or 0.0)
    return found if found > _ROUNDING * best else 0.0


def _alike(before: StudySpec, after: StudySpec) -> bool:
    """Whether results of both studies can be compared: they train for as long, by the same schedule."""
    return (before.max_train_steps, before.schedule) == (after.max_train_steps, after.schedule)


def _within(before: StudySpec, after: StudySpec) -> bool:
    """Whether the later study searches nothing but what the earlier one did: then its trials do what those did that lie in it."""
    for name, new in after.searched.items():
        old = before.searched.get(name)
        if old is None or old.numeric != new.numeric:
            return False
        ends = (new.low, new.high) if new.low is not None and new.high is not None else new.options
        if not all(old.contains(end) for end in ends):
            return False
    return True


def _bound(count: int, of: int, new: int, was: float) -> tuple[float, float]:
    """(bound of the share among `new` trials, how likely it is kept), where `count` of `of` trials showed it.

    The least share that new trials exceed in at most 10 % of cases, and less than it was; Beta-binomial with Jeffreys' prior.
    """
    chances = stats.betabinom.cdf(np.arange(new + 1), new, count + 0.5, of - count + 0.5)
    most = int(np.searchsorted(chances, SURE))
    most = min(most, math.ceil(was * new) - 1)
    return max(most, 0) / new, float(chances[max(most, 0)])
