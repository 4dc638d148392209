"""Determines the number of trials of each next study, and fits the studies into a budget.

A search needs enough trials to estimate a quadratic response to all searched hyperparameters and the noise around it and, while no
hyperparameter has a known effect, enough trials to detect one (`states.trials_needed`). Earlier results count if they have the same
training length and lie in the new space. If a range was extended, none counts, because they do not cover the added part. A study
design keeps its number of trials. A budget is a number of steps or a duration, and is spent on the studies in their planned order.
If it is too small for a study, the study searches fewer hyperparameters, and its notes name the omitted ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from advisor.computed.space import importance
from advisor.computed.space.extension import names_of_changed_ranges
from advisor.computed.space.inside import trials_in_space
from advisor.model.errors import AdvisorError
from advisor.model.optimizers import TRIALS_FOR_RATE_ONLY
from advisor.model.space import is_learning_rate
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.words import count, listed
from advisor.planning import new_scores, price
from advisor.planning.base import MIN_SEARCH_TRIALS, base, is_random_search
from advisor.planning.designs.ladder import enough_trials_for_response, search_fewer_hyperparameters
from advisor.planning.merge import Plan
from advisor.planning.states import effect_state, settings_needed, trials_needed

MIN_TRIALS_PER_VALUE = 6
"""Minimum number of trials per value of a scientific hyperparameter if other hyperparameters are tuned for each value. Our choice.
"""
MAX_TRIALS_RATIO = 2
"""Maximum ratio of the next study's number of trials to that of the last study. If a study needs more trials, users should look
at the first results before they run the remaining trials."""
_SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hours": 3600.0, "d": 86400.0, "days": 86400.0}
_BUDGET_PATTERN = re.compile(r"((?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:e\+?\d+)?)\s*([a-z]+)")
"""Pattern of a number with its unit. Commas separate thousands only, because `1,5h` is ambiguous."""


def with_trial_numbers(study: Study, following: Plan) -> tuple[StudySpec, ...]:
    """Return the next studies, each with as many trials as its question needs. If a finding already raised the number of trials,
    the raised number stays. If scores change, earlier trials do not count."""
    carried = base(study).trials or 1
    made: list[StudySpec] = []
    for spec in following.specs:
        sized = spec
        explores = spec.study in following.unsized and study.spec.baseline is None and bool(study.ranked())
        if explores and is_random_search(spec) and (spec.trials or 0) >= carried:
            if spec.trials == carried:
                needed = trials_needed(effect_state(study), len(spec.searched))
                needed -= 0 if following.new_scores else _earlier_result_count(study, spec)
                sized = spec.model_copy(update={"trials": _next_trial_count(spec, needed)})
            ladder = "" if made else _ladder_note(study, sized, carried)
            sized = sized.model_copy(update={"notes": (*spec.notes, ladder)}) if ladder else sized
        made.append(sized)
    return tuple(made)


def _next_trial_count(spec: StudySpec, needed: int) -> int:
    numbers = sum(p.numeric for p in spec.searched.values())
    coefficients = math.comb(numbers + 2, 2) + sum(len(p.options) - 1 for p in spec.searched.values() if not p.numeric)
    carried = spec.trials or needed
    least = max(coefficients, min(TRIALS_FOR_RATE_ONLY, carried))
    return max(min(max(needed, least), MAX_TRIALS_RATIO * carried), _min_trial_count(spec))


def _earlier_result_count(study: Study, spec: StudySpec) -> int:
    """Return the number of earlier results that lie in the next study's space; 0 if the next study trains longer than the
    earlier trials.

    Results of longer earlier trials also count, because a study is shortened only if the last part of training does not improve
    the objective."""
    longer = (spec.max_train_steps or 0) > (study.spec.max_train_steps or 0) or spec.schedule != study.spec.schedule
    return 0 if longer or not spec.searches_within(study.spec) else len(trials_in_space(spec, study.ranked()))


def trial_number_reason(study: Study, spec: StudySpec) -> str:
    """Return the reason for a search's number of trials, as a clause; empty for studies that are not searches."""
    if spec.settings and any(p.numeric for p in spec.searched.values()):
        return new_scores.REPEAT_BEST_FIRST_REASON
    if not is_random_search(spec) or spec.sampler.kind == "adaptive" or spec.trials is None:
        return ""
    if spec.trials == TRIALS_FOR_RATE_ONLY and len(spec.searched) == 1 and is_learning_rate(next(iter(spec.searched))):
        return f"{TRIALS_FOR_RATE_ONLY} trials are enough for a learning rate alone"
    needed, counted = trials_needed(effect_state(study), len(spec.searched)), _earlier_result_count(study, spec)
    reason = f"about {needed} trials show the best values of {count(len(spec.searched), 'hyperparameter')}"
    if counted:
        reason += f", and {count(counted, 'earlier trial')} in the new space {'counts' if counted == 1 else 'count'}"
    return f"{reason}; look at the first {spec.trials} before you run more" if spec.trials < needed - counted else reason


def _min_trial_count(spec: StudySpec) -> int:
    """Each choice gets at least one trial, and each compared value enough trials to tune the other hyperparameters."""
    if len(spec.searched) == 1 and is_learning_rate(next(iter(spec.searched))):
        return TRIALS_FOR_RATE_ONLY
    tunes = any(p.numeric and p.role == "nuisance" for p in spec.searched.values())
    compared = [MIN_TRIALS_PER_VALUE * len(p.options) for p in spec.searched.values() if tunes and p.role == "scientific"]
    return max([MIN_SEARCH_TRIALS, *compared, *(len(p.options) for p in spec.searched.values())])


def _ladder_note(study: Study, spec: StudySpec, trials: int) -> str:
    new = names_of_changed_ranges(study, spec)
    if enough_trials_for_response(trials, spec):
        return ""
    fewer = search_fewer_hyperparameters(study, spec, MAX_TRIALS_RATIO * trials, why="", keep=new)
    if fewer is None:
        return ""
    every, least = (max(settings_needed(len(s.searched)), _min_trial_count(s)) for s in (spec, fewer))
    shares = importance.mean_importances(study)
    kept = sorted(fewer.searched, key=lambda n: -shares.get(n, 0.0))
    most = sorted(spec.searched, key=lambda n: -shares.get(n, 0.0))[: len(kept)]
    which = "the hyperparameters that matter most, " if shares and set(kept) == set(most) else ""
    return (
        f"About {every} trials show the best values of {len(spec.searched)} hyperparameters. Cheaper: search only {which}"
        f"{listed(kept)}, with {count(least, 'trial')}, and fix all other hyperparameters."
    )


@dataclass(frozen=True)
class CostLimit:
    """The maximum total cost of the next studies, in steps or seconds."""

    amount: float
    unit: Literal["steps", "seconds"]

    def __str__(self) -> str:
        return f"{self.amount:,.0f} steps" if self.unit == "steps" else price.hours(self.amount)


def parse_budget(text: str) -> CostLimit:
    """Parse a budget such as `40h`, `90 min` or `2e6 steps`. Raises AdvisorError for text in any other form."""
    match = _BUDGET_PATTERN.fullmatch(text.strip().lower())
    if match is not None:
        amount, unit = float(match[1].replace(",", "").replace("_", "")), match[2]
        amount *= 1.0 if unit in ("step", "steps") else _SECONDS_PER_UNIT.get(unit, math.nan)
        if 0 < amount < math.inf:
            return CostLimit(amount, "steps" if unit in ("step", "steps") else "seconds")
    raise AdvisorError(f"--budget {text!r} is neither a time, such as 40h, nor a number of steps, such as '2e6 steps'")


def within(study: Study, specs: Sequence[StudySpec], budget: CostLimit) -> tuple[StudySpec, ...]:
    """Return the next studies that the budget pays for. Raises AdvisorError if it pays for no trial or costs are unknown."""
    left = budget.amount
    made: list[StudySpec] = []
    dropped: list[StudySpec] = []
    for spec in specs:
        costs = price.cost(study, spec)
        each = costs.steps if budget.unit == "steps" else costs.seconds
        if not math.isfinite(each):
            raise AdvisorError(f"no trial logged its {budget.unit}, so --budget {budget} cannot be planned")
        paid = _affordable(study, spec, int(left / each + 1e-9), first=not made) if not dropped else None
        if paid is None:
            dropped.append(spec)
            continue
        made.append(paid)
        left -= each * (paid.trials or 1) * (paid.seeds or 1)
    if specs and not made:
        raise AdvisorError(f"--budget {budget} pays for no trial of the next study. {price.cost(study, specs[0]).sentence}")
    if dropped:
        goals = "; ".join(s.goal.partition(":")[0] for s in dropped)
        note = f"The budget of {budget} leaves out later studies: {goals}."
        made[0] = made[0].model_copy(update={"notes": (*made[0].notes, note)})
    return tuple(made)


def _affordable(study: Study, spec: StudySpec, runs: int, *, first: bool) -> StudySpec | None:
    trials = runs // (spec.seeds or 1)
    if trials >= (spec.trials or 1):
        return spec
    if spec.probe is not None or not spec.searched or trials < (1 if first else _min_trial_count(spec)):
        return None
    why = "the budget pays for too few trials to search this hyperparameter, too"
    fewer = None if enough_trials_for_response(trials, spec) else search_fewer_hyperparameters(study, spec, trials, why)
    text = f"The budget pays for {count(trials, 'trial')} of the {spec.trials} that this study needs."
    if fewer is not None:
        fixed = [n for n in spec.searched if n not in fewer.searched]
        text += f" The study therefore fixes {listed(fixed)}."
    return (fewer or spec).model_copy(update={"trials": trials, "notes": (*spec.notes, text)})
