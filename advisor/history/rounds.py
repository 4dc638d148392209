"""The rounds of a lineage: what each changed and found, what became of its predictions, and whether tuning still pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from advisor.computed.decision import repeats
from advisor.engine.judge import judge
from advisor.engine.rule import Rule
from advisor.history.judge import outcomes
from advisor.history.model import History, Round, hit_rates
from advisor.history.pool import Pooled, numbers
from advisor.model.finding import Verdict
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import describe
from advisor.model.study import Study

WITHOUT_GAIN = 2
"""Rounds in a row that must have gained nothing beyond noise before tuning is said to have stopped paying; ours."""
LEVEL = 0.05
"""One minus it is how sure it must be that a gain is none, given how much seeds differ."""


def history(
    studies: Sequence[Study],
    rules: Sequence[Rule],
    *,
    pooled: Pooled | None = None,
    said: Sequence[str] = (),
    open_findings: bool = False,
) -> History:
    """The history of studies that follow from each other, the first one first; all have the last one's objective.

    pooled: which trials of the earlier rounds count for the last one. open_findings: whether something is left that the next
    study is to change, so that tuning has not stopped paying.
    """
    counted = (*(pooled.counted if pooled is not None else ()), 0)
    rounds: list[Round] = []
    costs = [_best_cost(s) for s in studies]
    for i, (study, number) in enumerate(zip(studies, numbers(studies), strict=True)):
        best = study.ranked()[:1]
        so_far = min(costs[: i + 1])
        before = next((s.spec for s in studies[:i] if s.name == study.spec.parent), studies[max(i - 1, 0)].spec)
        rounds.append(
            Round(
                study=study.name,
                number=number,
                goal=study.spec.goal,
                trials=len(study.trials),
                feasible=int(study.feasible.sum()),
                max_train_steps=study.spec.max_train_steps,
                best=study.objective_value(costs[i]) if best else None,
                best_trial=best[0].name if best else None,
                incumbent=study.objective_value(so_far) if math.isfinite(so_far) else None,
                changed=changes(before, study.spec) if i else (),
                why=_reasons(before, study.spec) if i else (),
                outcomes=outcomes(study, _asker(study, rules)),
                counted=counted[i] if i < len(counted) else 0,
            )
        )
    notes = (*said, *(pooled.said if pooled is not None else ()))
    stop = None if open_findings else _stop(studies)
    return History(
        objective=studies[-1].spec.objective,
        rounds=tuple(rounds),
        said=notes,
        hit_rates=hit_rates(o for r in rounds for o in r.outcomes),
        stop=stop,
    )


def _asker(study: Study, rules: Sequence[Rule]) -> Callable[[str], Verdict | None]:
    by_id = {rule.rule_id(): rule for rule in rules}
    return lambda rule: judge(study, [by_id[rule]])[0] if rule in by_id else None


def _best_cost(study: Study) -> float:
    return float(np.min(study.costs[study.feasible], initial=math.inf))


# --- what changed -----------------------------------------------------------------------------------------------------------------


def changes(before: StudySpec, after: StudySpec) -> tuple[str, ...]:
    """What a study searched or ran otherwise than the one before, one phrase each."""
    found = []
    for name in dict.fromkeys([*before.parameters, *after.parameters]):
        old, new = before.parameters.get(name), after.parameters.get(name)
        one, other = (None if p is None else describe(p) for p in (old, new))
        if one != other:
            found.append(f"{name}: {other or 'not any more'}, {f'{one} before' if one else 'new'}")
    for field in ("max_train_steps", "trials", "seeds"):
        one, other = getattr(before, field), getattr(after, field)
        if one != other and other is not None:
            found.append(f"{field}: {other:,}" + (f", {one:,} before" if one is not None else ""))
    if (before.schedule or {}) != (after.schedule or {}):
        found.append("schedule: " + (", ".join(f"{k} {v}" for k, v in (after.schedule or {}).items()) or "none"))
    return tuple(found)


def _reasons(before: StudySpec, after: StudySpec) -> tuple[str, ...]:
    """The reasons that a study file gives for what it searches otherwise."""
    old = before.parameters
    changed = {n: p for n, p in after.parameters.items() if n not in old or describe(old[n]) != describe(p)}
    return tuple(dict.fromkeys(p.why for p in changed.values() if p.why))


# --- does it still pay? -----------------------------------------------------------------------------------------------------------


def _stop(studies: Sequence[Study]) -> str | None:
    """Why tuning has stopped paying; None while it has not, or while it is not known how much seeds differ.

    The best of the last rounds must not be better than the best before by more than two single runs of one setting differ by.
    """
    if len(studies) <= WITHOUT_GAIN:
        return None
    tried = [s for study in studies for s in repeats.settings(study)]
    variance = repeats.trial_variance(tried)
    if variance is None:
        return None
    costs = [_best_cost(s) for s in studies]
    before, last = min(costs[:-WITHOUT_GAIN]), min(costs[-WITHOUT_GAIN:])
    band = variance[0] * float(stats.t.ppf(1 - LEVEL, variance[1])) * math.sqrt(2)
    if not math.isfinite(before) or before - last > band:
        return None
    trials = sum(len(s.trials) for s in studies[-WITHOUT_GAIN:])
    gain = max(before - last, 0.0)
    return (
        f"The last {WITHOUT_GAIN} rounds, {trials} trials, gained {gain:.2g} over the best before, and two runs of one setting "
        f"differ by as much as {band:.2g} by their seeds alone: tuning this has stopped paying. Take the simplest of the settings "
        "that are as good as the best, search around it once more with an adaptive sampler if the last bit matters, evaluate that "
        "one model on the test set once, and ship it; or change the question: another architecture, more data, more steps."
    )
