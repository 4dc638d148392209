"""Judges each prediction about a study by the study's trials, and states the numbers behind the judgement."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from advisor.computed.space import failures
from advisor.history.model import Judgement, Outcome
from advisor.model.finding import Verdict
from advisor.model.prediction import BestBeyond, BestNear, Prediction, Settled, ShareOfTrials, describe_prediction
from advisor.model.space import as_number, round_significant
from advisor.model.study import Study, Trial
from advisor.model.words import share, short_text

MIN_ENDED_SHARE = 0.5
"""Minimum share of a study's trials that must have ended before we judge predictions about it."""

JudgementWithReason = tuple[bool | None, str]
"""(True if the prediction came true, False if not, None if the data do not show it; the observed result as text.)"""
VerdictFinder = Callable[[str], Verdict | None]
"""Function that returns the verdict of the rule with a given id on the study, or None if the rule does not exist."""


def judge_predictions(study: Study, verdict_of: VerdictFinder) -> tuple[Outcome, ...]:
    """Judge each prediction about a study by the study's own trials."""
    ended_count, planned_count = int(study.ended.sum()), (study.spec.trials or 0) * (study.spec.seeds or 1)
    outcomes = []
    for prediction in study.spec.predictions:
        if ended_count < MIN_ENDED_SHARE * planned_count:
            judgement, observed = None, f"{ended_count} of its {planned_count} trials have ended"
        else:
            judgement, observed = _judge_prediction(study, prediction, verdict_of)
        judgement_text: Judgement = "cannot tell" if judgement is None else "kept" if judgement else "not kept"
        prediction_text = describe_prediction(prediction, study.spec.objective)
        outcomes.append(Outcome(prediction=prediction, judged=judgement_text, predicted=prediction_text, observed=observed))
    return tuple(outcomes)


def _judge_prediction(study: Study, prediction: Prediction, verdict_of: VerdictFinder) -> JudgementWithReason:
    expects = prediction.expects
    if isinstance(expects, Settled):
        verdict = verdict_of(prediction.rule)
        if verdict is None:
            return None, f"the rule {prediction.rule} no longer exists"
        if verdict.status not in ("fired", "quiet"):
            return None, verdict.reason or "the rule could not judge the study"
        repeated_findings = [f for f in verdict.findings if (f.subject, f.side) == (prediction.subject, expects.side)]
        return not repeated_findings, f"found again: {repeated_findings[0].message}" if repeated_findings else "not found again"
    if isinstance(expects, ShareOfTrials):
        return _judge_trial_share(study, expects)
    if not study.feasible.any():
        return None, "no trial has a result"
    if isinstance(expects, BestBeyond):
        return _judge_best_beyond(study, expects)
    if isinstance(expects, BestNear):
        return _judge_best_near(study, expects)
    best, target = study.ranked()[0], expects.value if study.minimize else -expects.value
    is_reached = float(study.costs[best.index]) <= target + 1e-9 * abs(target)
    return is_reached, f"the best is {_objective_text(study, best)}"


def _judge_best_beyond(study: Study, expectation: BestBeyond) -> JudgementWithReason:
    """Judge a prediction about the best trial beyond the old end of a range: this trial is better, by more than noise, than the
    best trial inside the old range and the best trial of earlier studies."""
    parameter = study.spec.parameters.get(expectation.parameter)
    if parameter is None or not parameter.numeric:
        return None, f"the study does not search {expectation.parameter}"
    end, *_ = parameter.to_positions([expectation.end])
    best_first = study.ranked()
    positions = study.positions(expectation.parameter, best_first)
    is_beyond = positions > end if expectation.side == "high" else positions < end
    if not is_beyond.any():
        return None, f"no trial with a result lies beyond {short_text(expectation.end)}"
    best_beyond = best_first[int(np.argmax(is_beyond))]
    costs_within = [float(study.costs[t.index]) for t, out in zip(best_first, is_beyond, strict=True) if not out][:1]
    if expectation.than is not None:
        costs_within.append(expectation.than if study.minimize else -expectation.than)
    value_text = short_text(best_beyond.params[expectation.parameter])
    result = f"{expectation.parameter} {value_text} gave {_objective_text(study, best_beyond)}"
    if not costs_within:
        return True, f"{result}; all trials lie beyond {short_text(expectation.end)}"
    best_within = min(costs_within)
    gain = best_within - float(study.costs[best_beyond.index])
    observed = f"{result}, the best within the old range gave {short_text(study.objective_value(best_within))}"
    if 0 < gain <= expectation.min_lead:
        observed += f"; results differ between seeds by up to {short_text(round_significant(expectation.min_lead, 2))}"
    return gain > expectation.min_lead, observed


def _judge_best_near(study: Study, expects: BestNear) -> JudgementWithReason:
    low, high = expects.ends
    with_value = [(t, v) for t in study.ranked() if math.isfinite(v := as_number(t.params.get(expects.parameter)))]
    near_trials = [t for t, value in with_value if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    if not near_trials:
        return None, f"no trial with a result has {expects.parameter} near {short_text(expects.value)}"
    best, value = with_value[0]
    result = f"{expects.parameter} {short_text(value)} gave {_objective_text(study, best)}"
    if best in near_trials:
        return True, result
    ratio = max(value / expects.value, expects.value / value) if value > 0 else math.inf
    distance_text = f"{short_text(ratio)} times {'higher' if value > expects.value else 'lower'}"
    near_text = f"the best near {short_text(expects.value)} gave {_objective_text(study, near_trials[0])}"
    return False, f"{result}, {distance_text}; {near_text}"


def _judge_trial_share(study: Study, expectation: ShareOfTrials) -> JudgementWithReason:
    ended_trials = [t for t in study.trials if study.ended[t.index]]
    if not ended_trials:
        return None, "no trial has ended"
    if expectation.of == "failed":
        has_failed = failures.failure_masks(study).has_failed
        count, property_text = sum(bool(has_failed[t.index]) for t in ended_trials), "failed"
    else:
        limit = (expectation.value or 0.0) * (1 if study.minimize else -1)
        count = sum(bool(study.feasible[t.index]) and study.costs[t.index] <= limit for t in ended_trials)
        property_text = f"are at least as good as {short_text(expectation.value)}"
    total = len(ended_trials)
    observed = f"{count} of {total} trials {property_text} ({share(count / total)})"
    high, low = expectation.at_most, expectation.at_least
    if high is not None:
        chance = stats.binom.cdf(math.floor(high * total + 1e-9), total, expectation.was)
    else:
        chance = stats.binom.sf(math.ceil((low or 0.0) * total - 1e-9) - 1, total, expectation.was)
    if chance > 0.5:
        return None, f"{observed}; even without any change, so few trials would show such a share more than half of the time"
    is_fulfilled = (high is None or count / total <= high + 1e-9) and (low is None or count / total >= low - 1e-9)
    return is_fulfilled, observed


def _objective_text(study: Study, trial: Trial) -> str:
    return short_text(study.objective_value(float(study.costs[trial.index])))
