"""Determines the number of trials of each next study, and fits the studies into a budget.

A search needs enough trials to estimate a quadratic response and its noise and, while no effect is known, to detect an effect
(`states.trials_needed`). Earlier results count if they have the same training length and lie in the new space. If a range was
extended, no earlier result counts. Studies from a study design keep their number of trials. A budget is a number of steps or a
duration, and is spent on the studies in their planned order. If the budget is too small for a study, the study searches fewer
hyperparameters, and its notes name the omitted hyperparameters."""

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
from advisor.planning.base import MIN_SEARCH_TRIALS, initial_draft, is_random_search
from advisor.planning.designs.ladder import enough_trials_for_response, search_fewer_hyperparameters
from advisor.planning.merge import Plan
from advisor.planning.states import effect_state, settings_needed, trials_needed

MIN_TRIALS_PER_VALUE = 6
"""Minimum number of trials per compared value if other hyperparameters are tuned for each value. Our choice."""
MAX_TRIALS_RATIO = 2
"""Maximum ratio of the next study's number of trials to the last study's number of trials. If a study needs more trials, users
should look at the first results before they run the remaining trials."""
_SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hours": 3600.0, "d": 86400.0, "days": 86400.0}
_BUDGET_PATTERN = re.compile(r"((?:(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d*)?|\.\d+)(?:e\+?\d+)?)\s*([a-z]+)")
"""Pattern of a number with its unit. Commas separate thousands only, because `1,5h` is ambiguous."""


def with_trial_numbers(study: Study, plan: Plan) -> tuple[StudySpec, ...]:
    """Return the next studies. Each gets as many trials as its goal needs, unless a finding already raised its number of
    trials. If scores change, earlier trials do not count."""
    previous = initial_draft(study).trials or 1
    specs: list[StudySpec] = []
    for spec in plan.specs:
        sized = spec
        is_exploration = spec.study in plan.studies_to_size and study.spec.baseline is None and bool(study.ranked())
        if is_exploration and is_random_search(spec) and (spec.trials or 0) >= previous:
            if spec.trials == previous:
                needed = trials_needed(effect_state(study), len(spec.searched))
                needed -= 0 if plan.new_scores else _earlier_result_count(study, spec)
                sized = spec.model_copy(update={"trials": _next_trial_count(spec, needed)})
            note = "" if specs else _ladder_note(study, sized, previous)
            sized = sized.model_copy(update={"notes": (*spec.notes, note)}) if note else sized
        specs.append(sized)
    return tuple(specs)


def _next_trial_count(spec: StudySpec, needed: int) -> int:
    numeric_count = sum(p.numeric for p in spec.searched.values())
    coefficients = math.comb(numeric_count + 2, 2) + sum(len(p.options) - 1 for p in spec.searched.values() if not p.numeric)
    previous = spec.trials or needed
    min_trials = max(coefficients, min(TRIALS_FOR_RATE_ONLY, previous))
    return max(min(max(needed, min_trials), MAX_TRIALS_RATIO * previous), _min_trial_count(spec))


def _earlier_result_count(study: Study, spec: StudySpec) -> int:
    """Return the number of earlier results that lie in the next study's space, or 0 if the next study trains longer than the
    earlier trials.

    Results of longer earlier trials also count, because a study is shortened only if the last part of training does not improve
    the objective."""
    trains_longer = (spec.max_train_steps or 0) > (study.spec.max_train_steps or 0) or spec.schedule != study.spec.schedule
    return 0 if trains_longer or not spec.searches_within(study.spec) else len(trials_in_space(spec, study.ranked()))


def trial_number_reason(study: Study, spec: StudySpec) -> str:
    """Return a clause with the reason for a search's number of trials; empty if the study is not a search."""
    if spec.settings and any(p.numeric for p in spec.searched.values()):
        return new_scores.REPEAT_BEST_FIRST_REASON
    if not is_random_search(spec) or spec.sampler.kind == "adaptive" or spec.trials is None:
        return ""
    if spec.trials == TRIALS_FOR_RATE_ONLY and len(spec.searched) == 1 and is_learning_rate(next(iter(spec.searched))):
        return f"{TRIALS_FOR_RATE_ONLY} trials are enough for a learning rate alone"
    needed, earlier = trials_needed(effect_state(study), len(spec.searched)), _earlier_result_count(study, spec)
    reason = f"about {needed} trials show the best values of {count(len(spec.searched), 'hyperparameter')}"
    if earlier:
        reason += f", and {count(earlier, 'earlier trial')} in the new space {'counts' if earlier == 1 else 'count'}"
    return f"{reason}; look at the first {spec.trials} before you run more" if spec.trials < needed - earlier else reason


def _min_trial_count(spec: StudySpec) -> int:
    """Return a number of trials with which each choice gets at least one trial, and each compared value at least
    `MIN_TRIALS_PER_VALUE` trials to tune the other hyperparameters."""
    if len(spec.searched) == 1 and is_learning_rate(next(iter(spec.searched))):
        return TRIALS_FOR_RATE_ONLY
    tunes_others = any(p.numeric and p.role == "nuisance" for p in spec.searched.values())
    compared = [p for p in spec.searched.values() if tunes_others and p.role == "scientific"]
    min_compared = max((MIN_TRIALS_PER_VALUE * len(p.options) for p in compared), default=0)
    return max(MIN_SEARCH_TRIALS, min_compared, *(len(p.options) for p in spec.searched.values()))


def _ladder_note(study: Study, spec: StudySpec, trials: int) -> str:
    changed_ranges = names_of_changed_ranges(study, spec)
    if enough_trials_for_response(trials, spec):
        return ""
    smaller = search_fewer_hyperparameters(study, spec, MAX_TRIALS_RATIO * trials, why="", keep=changed_ranges)
    if smaller is None:
        return ""
    for_all, for_fewer = (max(settings_needed(len(s.searched)), _min_trial_count(s)) for s in (spec, smaller))
    importances = importance.mean_importances(study)
    kept_names = sorted(smaller.searched, key=lambda n: -importances.get(n, 0.0))
    most_important = sorted(spec.searched, key=lambda n: -importances.get(n, 0.0))[: len(kept_names)]
    kept_text = "the hyperparameters that matter most, " if importances and set(kept_names) == set(most_important) else ""
    return (
        f"About {for_all} trials show the best values of {len(spec.searched)} hyperparameters. Cheaper: search only "
        f"{kept_text}{listed(kept_names)}, with {count(for_fewer, 'trial')}, and fix all other hyperparameters."
    )


@dataclass(frozen=True)
class CostLimit:
    """The maximum total cost of the next studies, in steps or seconds."""

    amount: float
    unit: Literal["steps", "seconds"]

    def __str__(self) -> str:
        return f"{self.amount:,.0f} steps" if self.unit == "steps" else price.duration_text(self.amount)


def parse_budget(text: str) -> CostLimit:
    """Parse a budget such as `40h`, `90 min` or `2e6 steps`. Raises AdvisorError for text in any other form."""
    parsed = _BUDGET_PATTERN.fullmatch(text.strip().lower())
    if parsed is not None:
        amount, unit = float(parsed[1].replace(",", "").replace("_", "")), parsed[2]
        amount *= 1.0 if unit in ("step", "steps") else _SECONDS_PER_UNIT.get(unit, math.nan)
        if 0 < amount < math.inf:
            return CostLimit(amount, "steps" if unit in ("step", "steps") else "seconds")
    raise AdvisorError(f"--budget {text!r} is neither a time, such as 40h, nor a number of steps, such as '2e6 steps'")


def fit_into_budget(study: Study, specs: Sequence[StudySpec], budget: CostLimit) -> tuple[StudySpec, ...]:
    """Return the next studies that the budget pays for. Raises AdvisorError for no trial or unknown costs."""
    remaining = budget.amount
    included: list[StudySpec] = []
    dropped: list[StudySpec] = []
    for spec in specs:
        run_cost = price.estimate_cost(study, spec)
        run_steps = run_cost.steps if budget.unit == "steps" else run_cost.seconds
        if not math.isfinite(run_steps):
            raise AdvisorError(f"no trial logged its number of {budget.unit}, so --budget {budget} cannot be planned")
        runs = int(remaining / run_steps + 1e-9)
        affordable = _affordable_study(study, spec, runs, first=not included) if not dropped else None
        if affordable is None:
            dropped.append(spec)
            continue
        included.append(affordable)
        remaining -= run_steps * (affordable.trials or 1) * (affordable.seeds or 1)
    if specs and not included:
        cost_text = price.estimate_cost(study, specs[0]).sentence
        raise AdvisorError(f"--budget {budget} pays for no trial of the next study. {cost_text}")
    if dropped:
        goals = "; ".join(s.goal.partition(":")[0] for s in dropped)
        note = f"The budget of {budget} leaves out later studies: {goals}."
        included[0] = included[0].model_copy(update={"notes": (*included[0].notes, note)})
    return tuple(included)


def _affordable_study(study: Study, spec: StudySpec, runs: int, *, first: bool) -> StudySpec | None:
    trials = runs // (spec.seeds or 1)
    if trials >= (spec.trials or 1):
        return spec
    if spec.probe is not None or not spec.searched or trials < (1 if first else _min_trial_count(spec)):
        return None
    why = "the budget pays for too few trials to search this hyperparameter, too"
    smaller_spec = None if enough_trials_for_response(trials, spec) else search_fewer_hyperparameters(study, spec, trials, why)
    note = f"The budget pays for {count(trials, 'trial')} of the {spec.trials} that this study needs."
    if smaller_spec is not None:
        fixed_names = [n for n in spec.searched if n not in smaller_spec.searched]
        note += f" The study therefore fixes {listed(fixed_names)}."
    return (smaller_spec or spec).model_copy(update={"trials": trials, "notes": (*spec.notes, note)})
