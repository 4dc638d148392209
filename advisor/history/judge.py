"""Judges what was predicted of a study by the trials that it then ran: kept, not kept, or not to be told, with the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from advisor.computed.decision import repeats
from advisor.computed.space import failures
from advisor.history.model import Judgement, Outcome
from advisor.model.finding import Verdict
from advisor.model.prediction import BestBeyond, BestReaches, Prediction, Settled, ShareOfTrials, SpreadWithin
from advisor.model.spec import Objective
from advisor.model.spec_yaml import share, short
from advisor.model.study import Study, Trial

FEWEST = 0.5
"""Share of a study's trials that must have ended before its predictions are judged."""
SURE = 0.9
"""How sure it must be that a lead is no luck, where the luck of one result is known."""

Said = tuple[Judgement, str]
Ask = Callable[[str], Verdict | None]
"""The verdict of a rule on the study; None where there is no such rule."""


def outcomes(study: Study, ask: Ask) -> tuple[Outcome, ...]:
    """What became of each prediction of a study, judged by its own trials alone."""
    return tuple(_outcome(study, p, ask) for p in study.spec.predictions)


def _outcome(study: Study, prediction: Prediction, ask: Ask) -> Outcome:
    judged, observed = _too_early(study) or _judge(study, prediction, ask)
    return Outcome(
        prediction=prediction, judged=judged, predicted=in_words(prediction, study.spec.objective), observed=observed
    )


def _too_early(study: Study) -> Said | None:
    ended, planned = int(study.ended.sum()), (study.spec.trials or 0) * (study.spec.seeds or 1)
    if ended < FEWEST * planned:
        return "cannot tell", f"{ended} of its {planned} trials have ended"
    return None


def _judge(study: Study, prediction: Prediction, ask: Ask) -> Said:
    expects = prediction.expects
    if isinstance(expects, Settled):
        return _settled(prediction, expects, ask)
    if isinstance(expects, ShareOfTrials):
        return _share(study, expects)
    if not study.feasible.any():
        return "cannot tell", "no trial gave a result"
    if isinstance(expects, BestBeyond):
        return _beyond(study, expects)
    return _reaches(study, expects) if isinstance(expects, BestReaches) else _spread(study, expects)


def _beyond(study: Study, expects: BestBeyond) -> Said:
    """Whether the best trial beyond the old end is better than the best within it, of this study and so far."""
    parameter = study.spec.parameters.get(expects.parameter)
    if parameter is None or not parameter.numeric:
        return "cannot tell", f"the study does not search {expects.parameter}"
    end, *_ = parameter.to_unit([expects.end])
    ranked = study.ranked()
    at = study.positions(expects.parameter, ranked)
    out = at > end if expects.side == "high" else at < end
    if not out.any():
        return "cannot tell", f"no trial with a result lies beyond {short(expects.end)}"
    best = ranked[int(np.argmax(out))]
    within = [float(study.costs[t.index]) for t, beyond in zip(ranked, out, strict=True) if not beyond][:1]
    if expects.than is not None:
        within.append(expects.than if study.minimize else -expects.than)
    where = f"{expects.parameter} {short(best.params[expects.parameter])} gave {_value(study, best)}"
    if not within:
        return "kept", f"all trials lie beyond {short(expects.end)}; {where}"
    rival = min(within)
    lead = rival - float(study.costs[best.index])
    said = f"{where}, the best within the old range gave {short(study.objective_value(rival))}"
    luck = float(stats.norm.ppf(SURE)) * math.sqrt(2) * expects.noise
    if abs(lead) <= luck:
        return "cannot tell", f"{said}: a difference of {short(abs(lead))} may be luck ({short(luck)})"
    return ("kept" if lead > 0 else "not kept"), said


def _reaches(study: Study, expects: BestReaches) -> Said:
    best = study.ranked()[0]
    wanted = expects.value if study.minimize else -expects.value
    kept = float(study.costs[best.index]) <= wanted + 1e-9 * abs(wanted)
    return ("kept" if kept else "not kept"), f"the best is {_value(study, best)}"


def _share(study: Study, expects: ShareOfTrials) -> Said:
    """Whether the share is on the right side; not to be told where the share as it was would as often as not be there, too."""
    ended = [t for t in study.trials if study.ended[t.index]]
    if not ended:
        return "cannot tell", "no trial has ended"
    if expects.of == "failed":
        failed = failures.failures(study).any
        count, what = sum(bool(failed[t.index]) for t in ended), "failed"
    else:
        limit = (expects.value or 0.0) * (1 if study.minimize else -1)
        count = sum(bool(study.feasible[t.index]) and study.costs[t.index] <= limit for t in ended)
        what = f"are as good as {short(expects.value)}"
    said = f"{count} of {len(ended)} trials {what} ({share(count / len(ended))})"
    most, least = expects.at_most, expects.at_least
    if most is not None:
        anyway = float(stats.binom.cdf(math.floor(most * len(ended) + 1e-9), len(ended), expects.was))
    else:
        anyway = float(stats.binom.sf(math.ceil((least or 0.0) * len(ended) - 1e-9) - 1, len(ended), expects.was))
    if anyway > 0.5:
        return "cannot tell", f"{said}; so few trials would show that as often as not without any change"
    part = count / len(ended)
    kept = (most is None or part <= most + 1e-9) and (least is None or part >= least - 1e-9)
    return ("kept" if kept else "not kept"), said


def _spread(study: Study, expects: SpreadWithin) -> Said:
    variance = repeats.trial_variance(repeats.settings(study))
    if variance is None:
        return "cannot tell", "no setting has two runs with a result and different seeds"
    kept = variance[0] >= expects.low and (expects.high is None or variance[0] <= expects.high)
    return ("kept" if kept else "not kept"), f"it is {variance[0]:.3g} (from {variance[1] + 1} runs or more)"


def _settled(prediction: Prediction, expects: Settled, ask: Ask) -> Said:
    verdict = ask(prediction.rule)
    if verdict is None:
        return "cannot tell", f"there is no rule {prediction.rule} any more"
    if verdict.status not in ("fired", "quiet"):
        return "cannot tell", verdict.reason or "the rule could not be asked"
    again = [f for f in verdict.findings if (f.subject, f.side) == (prediction.subject, expects.side)]
    return (
        ("not kept", f"found again: {again[0].message}") if again else ("kept", "it finds nothing of the kind any more")
    )


def _value(study: Study, trial: Trial) -> str:
    return short(study.objective_value(float(study.costs[trial.index])))


def in_words(prediction: Prediction, objective: Objective) -> str:
    """The prediction as one phrase."""
    return f"{_phrase(prediction, objective)}{_probability(prediction.probability)}"


def _probability(probability: float | None) -> str:
    return "" if probability is None else f", {share(probability)} likely"


def _phrase(prediction: Prediction, objective: Objective) -> str:
    expects, metric = prediction.expects, objective.metric
    better = "at most" if objective.direction == "minimize" else "at least"
    if isinstance(expects, BestBeyond):
        than = "" if expects.than is None else f", with {metric} better than {short(expects.than)}"
        above = "above" if expects.side == "high" else "below"
        return f"the best trial has {expects.parameter} {above} {short(expects.end)}{than}"
    if isinstance(expects, BestReaches):
        likely = "" if expects.expected is None else f", most likely {short(expects.expected)}"
        return f"the best {metric} is {better} {short(expects.value)}{likely} (it was {short(expects.than)})"
    if isinstance(expects, ShareOfTrials):
        what = "fail" if expects.of == "failed" else f"have {metric} of {better} {short(expects.value)}"
        most = "at most" if expects.at_most is not None else "at least"
        bound = expects.at_most if expects.at_most is not None else expects.at_least or 0.0
        return f"{most} {bound:.0%} of the trials {what} (it was {share(expects.was)})"
    if isinstance(expects, SpreadWithin):
        upper = "" if expects.high is None else f" and at most {expects.high:.3g}"
        return f"seeds differ by at least {expects.low:.3g}{upper} (standard deviation)"
    return f"{prediction.rule} finds nothing of the kind any more"
