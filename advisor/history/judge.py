"""Judges each prediction about a study by the study's trials, and states the numbers behind the judgement."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from advisor.computed.space import failures
from advisor.history.model import Judgement, Outcome
from advisor.model.finding import Verdict
from advisor.model.prediction import (
    BestBeyond,
    BestNear,
    Prediction,
    Settled,
    ShareOfTrials,
    describe_prediction,
    round_significant,
)
from advisor.model.space import as_number
from advisor.model.study import Study, Trial
from advisor.model.words import share, short_text

MIN_ENDED_SHARE = 0.5
"""Minimum share of a study's trials that must have ended before we judge predictions about it."""

JudgementWithReason = tuple[bool | None, str]
"""(Whether the prediction came true, None if this cannot be told; the observed result.)"""
VerdictFinder = Callable[[str], Verdict | None]
"""Function that returns the verdict of the rule with a given id on the study; None if the rule does not exist."""


def outcomes(study: Study, verdict_of: VerdictFinder) -> tuple[Outcome, ...]:
    """Judge each prediction about a study by the study's own trials."""
    ended_count, planned_count = int(study.ended.sum()), (study.spec.trials or 0) * (study.spec.seeds or 1)
    found = []
    for prediction in study.spec.predictions:
        if ended_count < MIN_ENDED_SHARE * planned_count:
            judgement, observed = None, f"{ended_count} of its {planned_count} trials have ended"
        else:
            judgement, observed = _judge_prediction(study, prediction, verdict_of)
        judged: Judgement = "cannot tell" if judgement is None else "kept" if judgement else "not kept"
        predicted = describe_prediction(prediction, study.spec.objective)
        found.append(Outcome(prediction=prediction, judged=judged, predicted=predicted, observed=observed))
    return tuple(found)


def _judge_prediction(study: Study, prediction: Prediction, verdict_of: VerdictFinder) -> JudgementWithReason:
    expects = prediction.expects
    if isinstance(expects, Settled):
        verdict = verdict_of(prediction.rule)
        if verdict is None:
            return None, f"the rule {prediction.rule} no longer exists"
        if verdict.status not in ("fired", "quiet"):
            return None, verdict.reason or "the rule could not judge the study"
        repeated = [f for f in verdict.findings if (f.subject, f.side) == (prediction.subject, expects.side)]
        return not repeated, f"found again: {repeated[0].message}" if repeated else "not found again"
    if isinstance(expects, ShareOfTrials):
        return _judge_trial_share(study, expects)
    if not study.feasible.any():
        return None, "no trial has a result"
    if isinstance(expects, BestBeyond):
        return _judge_best_beyond(study, expects)
    if isinstance(expects, BestNear):
        return _judge_best_near(study, expects)
    best, target = study.ranked()[0], expects.value if study.minimize else -expects.value
    reached = float(study.costs[best.index]) <= target + 1e-9 * abs(target)
    return reached, f"the best is {_objective_text(study, best)}"


def _judge_best_beyond(study: Study, expectation: BestBeyond) -> JudgementWithReason:
    """Judge a prediction that the best trial beyond the old end of a range is better, by more than noise, than the best trial
    inside the old range or of earlier studies."""
    parameter = study.spec.parameters.get(expectation.parameter)
    if parameter is None or not parameter.numeric:
        return None, f"the study does not search {expectation.parameter}"
    end, *_ = parameter.to_positions([expectation.end])
    best_first = study.ranked()
    positions = study.positions(expectation.parameter, best_first)
    beyond = positions > end if expectation.side == "high" else positions < end
    if not beyond.any():
        return None, f"no trial with a result lies beyond {short_text(expectation.end)}"
    best = best_first[int(np.argmax(beyond))]
    within = [float(study.costs[t.index]) for t, out in zip(best_first, beyond, strict=True) if not out][:1]
    if expectation.than is not None:
        within.append(expectation.than if study.minimize else -expectation.than)
    result = f"{expectation.parameter} {short_text(best.params[expectation.parameter])} gave {_objective_text(study, best)}"
    if not within:
        return True, f"{result}; all trials lie beyond {short_text(expectation.end)}"
    rival = min(within)
    lead = rival - float(study.costs[best.index])
    observed = f"{result}, the best within the old range gave {short_text(study.objective_value(rival))}"
    if 0 < lead <= expectation.min_lead:
        observed += f"; seeds alone differ by up to {short_text(round_significant(expectation.min_lead, 2))}"
    return lead > expectation.min_lead, observed


def _judge_best_near(study: Study, expects: BestNear) -> JudgementWithReason:
    low, high = expects.ends
    valued = [(t, v) for t in study.ranked() if math.isfinite(v := as_number(t.params.get(expects.parameter)))]
    near = [t for t, value in valued if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    if not near:
        return None, f"no trial with a result has {expects.parameter} near {short_text(expects.value)}"
    best, value = valued[0]
    result = f"{expects.parameter} {short_text(value)} gave {_objective_text(study, best)}"
    if best in near:
        return True, result
    ratio = max(value / expects.value, expects.value / value) if value > 0 else math.inf
    away = f"{short_text(ratio)} times {'higher' if value > expects.value else 'lower'}"
    return (False, f"{result}, {away}; the best near {short_text(expects.value)} gave {_objective_text(study, near[0])}")


def _judge_trial_share(study: Study, expectation: ShareOfTrials) -> JudgementWithReason:
    ended_trials = [t for t in study.trials if study.ended[t.index]]
    if not ended_trials:
        return None, "no trial has ended"
    if expectation.of == "failed":
        has_failed = failures.failure_masks(study).any
        count, what = sum(bool(has_failed[t.index]) for t in ended_trials), "failed"
    else:
        limit = (expectation.value or 0.0) * (1 if study.minimize else -1)
        count = sum(bool(study.feasible[t.index]) and study.costs[t.index] <= limit for t in ended_trials)
        what = f"are at least as good as {short_text(expectation.value)}"
    total = len(ended_trials)
    observed = f"{count} of {total} trials {what} ({share(count / total)})"
    high, low = expectation.at_most, expectation.at_least
    if high is not None:
        by_chance = stats.binom.cdf(math.floor(high * total + 1e-9), total, expectation.was)
    else:
        by_chance = stats.binom.sf(math.ceil((low or 0.0) * total - 1e-9) - 1, total, expectation.was)
    if by_chance > 0.5:
        return None, f"{observed}; even without any change, so few trials would show such a share more than half of the time"
    holds = (high is None or count / total <= high + 1e-9) and (low is None or count / total >= low - 1e-9)
    return holds, observed


def _objective_text(study: Study, trial: Trial) -> str:
    return short_text(study.objective_value(float(study.costs[trial.index])))
