"""Describes the rounds of a lineage (successive studies), and whether further tuning pays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from advisor.computed.decision import repeats
from advisor.engine.judge import judge
from advisor.engine.rule import Rule
from advisor.history.judge import judge_predictions
from advisor.history.model import History, Round, hit_rates
from advisor.history.pool import StudyWithEarlierTrials, round_numbers
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import describe_parameter
from advisor.model.study import Study

ROUNDS_WITHOUT_GAIN = 2
"""Number of successive rounds without an improvement beyond noise after which we report that tuning no longer pays."""
GAIN_TEST_LEVEL = 0.05
"""Significance level of the test whether a round's improvement exceeds the variation between seeds."""


def build_history(
    studies: Sequence[Study],
    rules: Sequence[Rule],
    *,
    pooled: StudyWithEarlierTrials | None = None,
    notes: Sequence[str] = (),
    open_findings: bool = False,
) -> History:
    """Return the history of a lineage. studies: all studies of the lineage, oldest first, with the same objective.

    pooled: the last study, with earlier trials that count as its data. open_findings: True if a finding recommends a change to
    the next study, so that tuning still pays."""
    counts = (*(pooled.counted if pooled is not None else ()), *[0] * len(studies))
    rule_by_id = {rule.rule_id(): rule for rule in rules}
    rounds = tuple(_describe_round(studies[: i + 1], n, rule_by_id, counts[i]) for i, n in enumerate(round_numbers(studies)))
    return History(
        objective=studies[-1].spec.objective,
        rounds=rounds,
        said=(*notes, *(pooled.notes if pooled is not None else ())),
        hit_rates=hit_rates(o for r in rounds for o in r.outcomes),
        stop=None if open_findings else _reason_to_stop(studies),
    )


def _describe_round(studies: Sequence[Study], number: int, rules: Mapping[str, Rule], counted: int) -> Round:
    *earlier, study = studies
    best_trials = study.ranked()[:1]
    incumbent = min(map(_best_cost, studies))
    parent = next((s for s in earlier if s.name == study.spec.parent), earlier[-1] if earlier else study)
    old, new = parent.spec.parameters, study.spec.parameters
    changed_parameters = [p for n, p in new.items() if n not in old or describe_parameter(old[n]) != describe_parameter(p)]
    return Round(
        study=study.name,
        number=number,
        goal=study.spec.goal,
        trials=len(study.trials),
        feasible=int(study.feasible.sum()),
        max_train_steps=study.spec.max_train_steps,
        best=study.objective_value(_best_cost(study)) if best_trials else None,
        best_trial=best_trials[0].name if best_trials else None,
        incumbent=study.objective_value(incumbent) if math.isfinite(incumbent) else None,
        changed=describe_study_changes(parent.spec, study.spec),
        why=tuple(dict.fromkeys(p.why for p in changed_parameters if p.why)),
        outcomes=judge_predictions(study, lambda rule: judge(study, [rules[rule]])[0] if rule in rules else None),
        counted=counted,
    )


def _best_cost(study: Study) -> float:
    return float(np.min(study.costs[study.feasible], initial=math.inf))


def describe_study_changes(before: StudySpec, after: StudySpec) -> tuple[str, ...]:
    """Return the differences between two studies, one phrase for each."""
    phrases = []
    for name in {**before.parameters, **after.parameters}:
        old, new = (describe_parameter(s.parameters[name]) if name in s.parameters else None for s in (before, after))
        if old != new:
            phrases.append(f"{name}: {new or 'removed'}, {f'was {old}' if old else 'new'}")
    for field in ("max_train_steps", "trials", "seeds"):
        old, new = getattr(before, field), getattr(after, field)
        if old != new and new is not None:
            phrases.append(f"{field}: {new:,}" + (f", was {old:,}" if old is not None else ""))
    if (before.schedule or {}) != (after.schedule or {}):
        phrases.append("schedule: " + (", ".join(f"{k} {v}" for k, v in (after.schedule or {}).items()) or "none"))
    return tuple(phrases)


def _reason_to_stop(studies: Sequence[Study]) -> str | None:
    """Return the reason why tuning no longer pays, or None if tuning still pays or the standard deviation between seeds is
    unknown.

    Tuning no longer pays if the improvement in the last rounds is no larger than the usual difference between two runs of one
    setting."""
    if len(studies) <= ROUNDS_WITHOUT_GAIN:
        return None
    variance = repeats.variance_between_seeds([s for study in studies for s in repeats.full_length_settings(study)])
    if variance is None:
        return None
    costs = [_best_cost(s) for s in studies]
    best_before, best_of_last = min(costs[:-ROUNDS_WITHOUT_GAIN]), min(costs[-ROUNDS_WITHOUT_GAIN:])
    noise = variance[0] * float(stats.t.ppf(1 - GAIN_TEST_LEVEL, variance[1])) * math.sqrt(2)
    if not math.isfinite(best_before) or best_before - best_of_last > noise:
        return None
    trials = sum(len(s.trials) for s in studies[-ROUNDS_WITHOUT_GAIN:])
    gain = max(best_before - best_of_last, 0.0)
    return (
        f"Stop tuning. The last {ROUNDS_WITHOUT_GAIN} rounds ({trials} trials) gained {gain:.2g}, and two runs of one setting "
        f"differ by up to {noise:.2g} between seeds. Choose the simplest of the settings that are as good as the best; if small "
        "gains matter, search around it once more with an adaptive sampler. Measure that one model on "
        f"{studies[-1].spec.objective.final_data}, once, and deploy it. For larger gains, change the architecture, the data or the "
        "number of steps."
    )
