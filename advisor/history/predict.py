"""Predicts the effects of a report's advice on the next study. `advisor.history.judge` judges the predictions after the next study
has run.

Each prediction belongs to one rule and to one change in the next study. The probability of a prediction is computed from the rule's
test or interval; if neither exists, no probability is stated. The attribute `predicts` of a rule declares what its advice predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.computed.curves import curve_tails, noise
from advisor.computed.space import failures
from advisor.computed.space.inside import trials_inside
from advisor.engine.rule import Expectation, Rule
from advisor.history import forecast
from advisor.model.change import AddParameter, Change, FixParameter, RunPlan, SetField, SetRange, SetSchedule
from advisor.model.finding import Finding, MissingData, Verdict
from advisor.model.prediction import (
    BestBeyond,
    BestReaches,
    Expected,
    Prediction,
    Settled,
    ShareOfTrials,
    round_significant,
)
from advisor.model.space import counts_training
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.planning.base import base
from advisor.planning.designs.catalogue import DESIGNS

COVERAGE = 0.9
"""Probability that a predicted interval or bound holds; a conventional value."""
MAX_PROBABILITY = 0.99
"""Maximum probability that we state for a prediction or its opposite, because models of noise do not justify higher
probabilities.
"""
MAX_PREDICTIONS = 8
"""Maximum number of predictions in a study file, so that the file stays readable."""
MIN_TRIALS = 5
"""Minimum number of trials from which to predict a bound on further results; with fewer trials, the bound would be the worst result
so far.
"""

_ROUNDING = 1e-9

Estimate = tuple[Expected, float | None]
"""(expected result, probability of that result or None)."""


@dataclass(frozen=True)
class _PredictionBasis:
    """The data from which a prediction is computed."""

    study: Study
    finding: Finding
    after: StudySpec
    """Spec of the next study."""
    inside: Sequence[Trial]
    """Ended trials whose settings lie in the next study's search space, regardless of training length and of hyperparameters that
    the next study newly fixes.
    """


def with_predictions(
    study: Study, verdicts: Sequence[Verdict], specs: Sequence[StudySpec], rules: Iterable[Rule] = ()
) -> tuple[StudySpec, ...]:
    """Return the next studies, each with predictions about the advice that the study follows. Probes and repeats get no
    predictions.
    """
    kinds = {rule.rule_id(): rule.predicts for rule in rules}
    findings = [f for v in verdicts for f in v.findings]
    specs_with_predictions, old_spec = [], base(study)
    for spec in specs:
        if spec.probe is not None:
            specs_with_predictions.append(spec)
            continue
        inside = trials_inside(_space_of(study, spec), _ended_trials(study))
        followed = [f for f in findings if any(_contains_change(study, c, old_spec, spec) for c in f.changes)]
        predictions = [
            p
            for f in followed
            for p in _predictions_of(_PredictionBasis(study, f, spec, inside), kinds.get(f.rule, "settled"))
        ]
        # Several findings of one rule may make the same prediction, for example findings on several unimportant hyperparameters.
        distinct = {(p.rule, p.expects): p for p in reversed(list(map(_round_values, predictions)))}
        specs_with_predictions.append(
            spec.model_copy(update={"predictions": tuple(reversed(distinct.values()))[:MAX_PREDICTIONS]})
        )
        old_spec = spec
    return tuple(specs_with_predictions)


def _space_of(study: Study, spec: StudySpec) -> StudySpec:
    """Return the next study without training lengths, and with newly fixed nuisance hyperparameters in their old ranges.

    Without the old ranges, hardly any earlier trial would lie in the space, because few trials have exactly the fixed values.
    """
    space = {n: p for n, p in spec.parameters.items() if not counts_training(n)}
    old = {n: p for n, p in study.searched.items() if p.role == "nuisance" and n in space and space[n].role == "fixed"}
    return spec.model_copy(update={"parameters": {**space, **old}})


def _contains_change(study: Study, change: Change, old_spec: StudySpec, new_spec: StudySpec) -> bool:
    """Return True if the new spec contains the change; if the change requests a study design, return True if it contains the
    design's changes.
    """
    if not isinstance(change, RunPlan):
        return was_change_made(change, old_spec, new_spec)
    design = DESIGNS[change.plan](change, study, old_spec)
    if isinstance(design, StudySpec):
        return design.goal == new_spec.goal
    return any(was_change_made(c, old_spec, new_spec) for c in design)


def _predictions_of(case: _PredictionBasis, kind: Expectation) -> Iterator[Prediction]:
    finding = case.finding
    estimate = _ESTIMATES[kind](case)
    if estimate is not None:
        yield Prediction(rule=finding.rule, subject=finding.subject, expects=estimate[0], probability=estimate[1])


def _round_values(prediction: Prediction) -> Prediction:
    update = {
        name: round_significant(value, 6 if name in ("value", "than", "end") else 3)
        for name, value in prediction.expects
        if isinstance(value, float)
    }
    p = prediction.probability
    return prediction.model_copy(
        update={
            "expects": prediction.expects.model_copy(update=update),
            "probability": None if p is None else round(min(max(p, 1 - MAX_PROBABILITY), MAX_PROBABILITY), 3),
        }
    )


# --- changes that were made -------------------------------------------------------------------------------------------------------


def was_change_made(change: Change, earlier_spec: StudySpec, later_spec: StudySpec) -> bool:
    """Return True if the later study contains the change and the earlier study does not. A partial change counts, too."""
    if isinstance(change, SetRange):
        old, new = earlier_spec.parameters.get(change.parameter), later_spec.parameters.get(change.parameter)
        return new is not None and new.numeric and _moves_range(change, old, new)
    if isinstance(change, FixParameter):
        old, new = earlier_spec.parameters.get(change.parameter), later_spec.parameters.get(change.parameter)
        return new is not None and new.value == change.value and (old is None or old.value != change.value)
    if isinstance(change, AddParameter):
        return change.name in later_spec.searched and change.name not in earlier_spec.searched
    if isinstance(change, SetField):
        return bool(change.value == getattr(later_spec, change.field) != getattr(earlier_spec, change.field))
    if isinstance(change, SetSchedule):
        old_schedule, new_schedule = earlier_spec.schedule or {}, later_spec.schedule or {}
        return any(new_schedule.get(k) == v and old_schedule.get(k) != v for k, v in change.schedule.items())
    return False


def _moves_range(change: SetRange, old: Parameter | None, new: Parameter) -> bool:
    """Return True if an end of the range moves in the direction that the change requests, or if the scale changes as requested.

    The end need not equal the requested value, because a different finding may move it further, or it may be rounded to a value
    that the training supports.
    """
    if old is None or old.low is None or old.high is None or new.low is None or new.high is None:
        return (new.low, new.high, new.scale) == (change.low, change.high, change.scale)
    ends = ((old.low, new.low, change.low), (old.high, new.high, change.high))
    moved = any((new_end - old_end) * (wanted_end - old_end) > 0 for old_end, new_end, wanted_end in ends)
    return moved or (new.scale == change.scale != old.scale)


# --- what each rule predicts ------------------------------------------------------------------------------------------------------


def _predict_best_beyond(case: _PredictionBasis) -> Estimate | None:
    """Predict that the best trial of the next study lies beyond the old end of a range and is better than the best trial in the old
    range.

    The probability of this prediction is at most the confidence of the finding about this range end.
    """
    study, finding, new_spec = case.study, case.finding, case.after
    name, old = finding.subject, study.spec.parameters.get(finding.subject or "")
    new = new_spec.parameters.get(name or "")
    if name is None or finding.side is None or old is None or new is None or old.low is None or old.high is None:
        return None
    end = old.low if finding.side == "low" else old.high
    if (
        not new.numeric
        or not new.contains(end)
        or any(math.isclose(end, e or 0, rel_tol=0.01) for e in (new.low, new.high))
    ):
        return None
    than = _best_value(study) if _are_comparable(study.spec, new_spec) and not _is_perfect(study) else None
    expects = BestBeyond(parameter=name, side=finding.side, end=end, than=than, noise=_noise_of_result(study))
    chance = forecast.chance_beyond(study, new_spec, expects)
    return expects, None if chance is None else min(chance, finding.confidence)


def _is_perfect(study: Study) -> bool:
    """Return True if the best trial has the highest possible score."""
    costs = study.costs[study.feasible]
    return not study.minimize and bool(len(costs)) and costs.min() <= curve_tails.cost_floor(study, costs)


def _predict_longer_training(case: _PredictionBasis) -> Estimate | None:
    """Predict a bound on the best objective value after longer training, from the pessimistic end of the forecast's 90 % interval.

    The next study draws new settings, and even the best of them may be worse than the present best setting, so the bound allows for
    this loss. If the bound is worse than the best value so far, predict the best value so far instead, without a probability.
    """
    study, finding, new_spec = case.study, case.finding, case.after
    try:
        judged_endings = curve_tails.best_endings(study, curve_tails.BEST, curve_tails.REACH)
    except MissingData:
        return None
    improving_endings = [e for e in judged_endings if e.trial.id in finding.trials] or judged_endings
    first = improving_endings[0]
    forecast_share = first.end.part_of_forecast(
        (new_spec.max_train_steps or 0) / curve_tails.typical_steps(study, improving_endings)
    )
    prediction, probability = curve_tails.forecast(study, first, forecast_share, COVERAGE), (1 + COVERAGE) / 2
    costs = study.cost_curve(study.ranked()[0]).finite.values
    best, sign = float(costs.min()), 1.0 if study.minimize else -1.0
    now, middle, worst = (
        sign * v for v in (prediction.now, prediction.middle, prediction.high if study.minimize else prediction.low)
    )
    bound = max(_cost_reached(case, probability) - (now - worst), curve_tails.cost_floor(study, costs))
    value, expected, than = (study.objective_value(cost) for cost in (min(bound, best), min(middle, best), best))
    return BestReaches(value=value, expected=expected, than=than), probability if bound <= best else None


def _predict_no_worse(case: _PredictionBasis) -> Estimate | None:
    """Predict that fewer training steps, or fixing an unimportant hyperparameter, worsen the best objective value by no more than
    noise.
    """
    study = case.study
    best, sd = _best_value(study), _noise_of_result(study)
    if best is None:
        return None
    max_difference = float(stats.norm.ppf(COVERAGE)) * math.sqrt(2) * sd
    cost = max(_cost_reached(case, COVERAGE), (best if study.minimize else -best) + max_difference)
    return BestReaches(value=study.objective_value(cost), expected=best, than=best), COVERAGE


def _cost_reached(case: _PredictionBasis, probability: float) -> float:
    """Return the cost that the next study's best trial reaches with this probability if its trials are distributed like existing
    ones.

    If enough existing trials lie in the next search space, only these trials count.
    """
    study, ended_trials = case.study, _ended_trials(case.study)
    trials = case.inside if len(case.inside) >= MIN_TRIALS else ended_trials
    costs = np.sort([study.costs[t.index] if study.feasible[t.index] else np.inf for t in trials])
    p_missed = (1 - np.arange(1, len(costs) + 1) / len(costs)) ** (case.after.trials or len(ended_trials))
    cost = float(costs[int(np.argmax(p_missed <= 1 - probability))])
    return cost if math.isfinite(cost) else float(costs[np.isfinite(costs)].max())


def _predict_fewer_failures(case: _PredictionBasis) -> Estimate | None:
    """Predict an upper bound on the share of failed trials, based on existing trials in the next study's search space."""
    study, new_spec = case.study, case.after
    if not new_spec.searches_within(study.spec):
        return None
    has_failed = failures.failures(study).any
    ended_trials = _ended_trials(study)
    was = sum(bool(has_failed[t.index]) for t in ended_trials) / max(len(ended_trials), 1)
    inside = case.inside
    bound, probability = _upper_bound_of_share(
        sum(bool(has_failed[t.index]) for t in inside), len(inside), new_spec.trials or len(ended_trials), was
    )
    return ShareOfTrials(of="failed", at_most=bound, was=was), probability


def _predict_share_of_better(case: _PredictionBasis) -> Estimate | None:
    """Predict a lower bound on the share of trials that are better than the analysed study's median, based on existing trials in
    the next study's search space.
    """
    study, new_spec = case.study, case.after
    best_first = study.ranked()
    if not best_first or not _are_comparable(study.spec, new_spec) or not new_spec.searches_within(study.spec):
        return None
    median = float(np.median(study.costs[[t.index for t in best_first]]))
    ended_trials = _ended_trials(study)
    good = {t.index for t in best_first if study.costs[t.index] <= median}
    inside = case.inside
    was = len(good) / len(ended_trials)
    worse = sum(t.index not in good for t in inside)
    bound, probability = _upper_bound_of_share(worse, len(inside), new_spec.trials or len(ended_trials), 1 - was)
    value = study.objective_value(median)
    return ShareOfTrials(of="better", value=value, at_least=1 - bound, was=was), probability


def _predict_settled(case: _PredictionBasis) -> Estimate | None:
    """Predict that the rule does not report the same problem again; None if the rule cannot report it again, because the next study
    does not search the hyperparameter.
    """
    if case.finding.subject in case.study.searched and case.finding.subject not in case.after.searched:
        return None
    return Settled(side=case.finding.side), None


_ESTIMATES: Mapping[Expectation, Callable[[_PredictionBasis], Estimate | None]] = {
    "settled": _predict_settled,
    "best-beyond": _predict_best_beyond,
    "longer-reaches": _predict_longer_training,
    "no-worse": _predict_no_worse,
    "fewer-failures": _predict_fewer_failures,
    "denser": _predict_share_of_better,
}


# --- what they share --------------------------------------------------------------------------------------------------------------


def _ended_trials(study: Study) -> list[Trial]:
    return [t for t in study.trials if study.ended[t.index]]


def _best_value(study: Study) -> float | None:
    best_first = study.ranked()
    return study.objective_value(float(study.costs[best_first[0].index])) if best_first else None


def _noise_of_result(study: Study) -> float:
    """Return the standard deviation of one trial's result: between seeds if a setting was repeated, else between evaluations at
    different steps.
    """
    sd, best = noise.noise_between_seeds(study)[0] or noise.noise_between_steps(study), abs(_best_value(study) or 0.0)
    return sd if sd > _ROUNDING * best else 0.0


def _are_comparable(old_spec: StudySpec, new_spec: StudySpec) -> bool:
    """Return True if the studies have the same number of steps and the same schedule, so that their results are comparable."""
    return (old_spec.max_train_steps, old_spec.schedule) == (new_spec.max_train_steps, new_spec.schedule)


def _upper_bound_of_share(count: int, total: int, new_trials: int, old_share: float) -> tuple[float, float]:
    """Return (upper bound, its probability) for the share of `new_trials` further trials that have a property, given that `count`
    of `total` trials had it.

    The bound is the smallest share that the new trials exceed with a probability of at most 10 %, and it must lie below the old
    share (beta-binomial distribution, Jeffreys prior).
    """
    cumulative = stats.betabinom.cdf(np.arange(new_trials + 1), new_trials, count + 0.5, total - count + 0.5)
    bound = max(min(int(np.searchsorted(cumulative, COVERAGE)), math.ceil(old_share * new_trials) - 1), 0)
    return bound / new_trials, float(cumulative[bound])
