"""Judges the predictions of a study by its trials: kept, not kept or cannot tell, with the numbers behind each judgement."""

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
    BestReaches,
    Prediction,
    Settled,
    ShareOfTrials,
    describe_prediction,
)
from advisor.model.study import Study, Trial
from advisor.model.words import share, short

MIN_ENDED = 0.5
"""Minimum share of a study's trials that must have ended before its predictions are judged."""
CONFIDENCE = 0.9
"""Minimum confidence that a lead is not due to seeds; applies if the standard deviation of one result is known."""

Judged = tuple[Judgement, str]
VerdictOf = Callable[[str], Verdict | None]
"""Function that returns the verdict of a rule on the study, or None if there is no such rule."""


def outcomes(study: Study, verdict_of: VerdictOf) -> tuple[Outcome, ...]:
    """Return the outcome of each prediction of a study, judged only by the study's own trials."""
    return tuple(_outcome(study, p, verdict_of) for p in study.spec.predictions)


def _outcome(study: Study, prediction: Prediction, verdict_of: VerdictOf) -> Outcome:
    judged, observed = _too_early(study) or _judge(study, prediction, verdict_of)
    predicted = describe_prediction(prediction, study.spec.objective)
    return Outcome(prediction=prediction, judged=judged, predicted=predicted, observed=observed)


def _too_early(study: Study) -> Judged | None:
    ended, planned = int(study.ended.sum()), (study.spec.trials or 0) * (study.spec.seeds or 1)
    if ended < MIN_ENDED * planned:
        return "cannot tell", f"{ended} of its {planned} trials have ended"
    return None


def _judge(study: Study, prediction: Prediction, verdict_of: VerdictOf) -> Judged:
    expects = prediction.expects
    if isinstance(expects, Settled):
        return _settled(prediction, expects, verdict_of(prediction.rule))
    if isinstance(expects, ShareOfTrials):
        return _share(study, expects)
    if not study.feasible.any():
        return "cannot tell", "no trial has a result"
    if isinstance(expects, BestBeyond):
        return _beyond(study, expects)
    return _reaches(study, expects)


def _answer(kept: bool) -> Judgement:
    return "kept" if kept else "not kept"


def _beyond(study: Study, expects: BestBeyond) -> Judged:
    """Judge whether the best trial beyond the old range end is better than the best inside, in this study and earlier ones."""
    parameter = study.spec.parameters.get(expects.parameter)
    if parameter is None or not parameter.numeric:
        return "cannot tell", f"the study does not search {expects.parameter}"
    end, *_ = parameter.to_unit([expects.end])
    ranked = study.ranked()
    at = study.positions(expects.parameter, ranked)
    beyond = at > end if expects.side == "high" else at < end
    if not beyond.any():
        return "cannot tell", f"no trial with a result lies beyond {short(expects.end)}"
    best = ranked[int(np.argmax(beyond))]
    within = [float(study.costs[t.index]) for t, out in zip(ranked, beyond, strict=True) if not out][:1]
    if expects.than is not None:
        within.append(expects.than if study.minimize else -expects.than)
    result = f"{expects.parameter} {short(best.params[expects.parameter])} gave {_value(study, best)}"
    if not within:
        return "kept", f"{result}; all trials lie beyond {short(expects.end)}"
    rival = min(within)
    lead = rival - float(study.costs[best.index])
    observed = f"{result}, the best within the old range gave {short(study.objective_value(rival))}"
    noise = float(stats.norm.ppf(CONFIDENCE)) * math.sqrt(2) * expects.noise
    if abs(lead) <= noise:
        return "cannot tell", f"{observed}; seeds alone differ by up to {short(noise)}"
    return _answer(lead > 0), observed


def _reaches(study: Study, expects: BestReaches) -> Judged:
    best = study.ranked()[0]
    wanted = expects.value if study.minimize else -expects.value
    return _answer(float(study.costs[best.index]) <= wanted + 1e-9 * abs(wanted)), f"the best is {_value(study, best)}"


def _share(study: Study, expects: ShareOfTrials) -> Judged:
    """Judge whether a share is on the predicted side of its bound; unclear if that is also likely for an unchanged share."""
    ended = [t for t in study.trials if study.ended[t.index]]
    if not ended:
        return "cannot tell", "no trial has ended"
    if expects.of == "failed":
        failed = failures.failures(study).any
        count, what = sum(bool(failed[t.index]) for t in ended), "failed"
    else:
        limit = (expects.value or 0.0) * (1 if study.minimize else -1)
        count = sum(bool(study.feasible[t.index]) and study.costs[t.index] <= limit for t in ended)
        what = f"are at least as good as {short(expects.value)}"
    part = count / len(ended)
    observed = f"{count} of {len(ended)} trials {what} ({share(part)})"
    high, low = expects.at_most, expects.at_least
    if high is not None:
        by_chance = float(stats.binom.cdf(math.floor(high * len(ended) + 1e-9), len(ended), expects.was))
    else:
        by_chance = float(stats.binom.sf(math.ceil((low or 0.0) * len(ended) - 1e-9) - 1, len(ended), expects.was))
    if by_chance > 0.5:
        return "cannot tell", f"{observed}; so few trials show that more than half of the time without any change"
    return _answer((high is None or part <= high + 1e-9) and (low is None or part >= low - 1e-9)), observed


def _settled(prediction: Prediction, expects: Settled, verdict: Verdict | None) -> Judged:
    if verdict is None:
        return "cannot tell", f"the rule {prediction.rule} no longer exists"
    if verdict.status not in ("fired", "quiet"):
        return "cannot tell", verdict.reason or "the rule could not judge"
    again = [f for f in verdict.findings if (f.subject, f.side) == (prediction.subject, expects.side)]
    return _answer(not again), f"found again: {again[0].message}" if again else "not found again"


def _value(study: Study, trial: Trial) -> str:
    return short(study.objective_value(float(study.costs[trial.index])))
