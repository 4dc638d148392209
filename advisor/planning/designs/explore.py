"""The design `explore`: more trials in the same space, if the data show neither which hyperparameters matter nor where the
optimum lies.

Playbook: "Exploration vs exploitation", "Identifying bad search space boundaries".

*When.* No rule recommends a change, and at least one of four questions is open: whether any hyperparameter has an effect, how
much results vary between seeds, whether results improve beyond the range end near the best trial, or which of the compared
values is best.

*What.* The same study with more trials, enough to detect an effect of `MIN_EFFECT_IN_SEED_SD` standard deviations between seeds
and to fit a quadratic response. The number of trials is at most doubled, or raised to `TRIALS_FOR_RATE_ONLY` if twice the
number is smaller. If at most `MAX_FEW_RATES` learning rates were tried and the user declared no range, the next study searches
a decade on each side of the best rate. The existing trials count as data of this study."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import numpy as np

from advisor.computed.space import settings
from advisor.engine.rule import Rule
from advisor.model.finding import Verdict
from advisor.model.learning_rate import searched_learning_rates
from advisor.model.optimizers import TRIALS_FOR_RATE_ONLY
from advisor.model.prediction import round_significant
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.words import count, plain_number, spelled
from advisor.planning import price
from advisor.planning.designs.exploit import best_trial_lies_inside
from advisor.planning.designs.rate_sweep import SWEEP_END_FACTOR
from advisor.planning.states import ExplorationEvidence, trials_needed

MORE_SETTINGS_GOAL = re.compile(r"Try [\d,]+ more settings?\b")
"""First words of the goal of a study that adds trials in the same space."""
MAX_FEW_RATES = 3
"""Maximum number of tried learning rates at which the next study searches beyond an inferred range. Our choice."""


def explore(
    study: Study, verdicts: Iterable[Verdict], rules: Iterable[Rule], base: StudySpec, evidence: ExplorationEvidence
) -> StudySpec | None:
    """Return the study with more trials, or None if more trials are not needed or would show nothing new."""
    if not any(p.numeric for p in base.searched.values()) or study.spec.sampler.kind == "adaptive" or not study.ranked():
        return None
    # Results may improve beyond the range if the best trial is close to an end that a rule still checks.
    range_end_rules = {rule.rule_id() for rule in rules if rule.predicts == "best-beyond"}
    at_end = any(v.rule in range_end_rules and v.status != "fired" for v in verdicts) and not best_trial_lies_inside(study)
    trials = missing_trial_count(study, base, evidence, at_end)
    if trials <= 0:
        return None
    trials = max(trials, *(len(p.options) for p in base.searched.values()))
    base, sweep_goal = _widen_few_rates(study, base)
    larger_spec = base.model_copy(update={"trials": trials})
    notes = (*base.notes, price.power_sentence(study, settings.read_settings(study).result_count, trials, len(base.searched)))
    return larger_spec.model_copy(update={"goal": sweep_goal or more_trials_goal(larger_spec), "notes": notes})


def _widen_few_rates(study: Study, base: StudySpec) -> tuple[StudySpec, str]:
    """If the learning-rate range was inferred from few tried rates, return (the study with a decade on each side of the best
    rate, its goal); else (the study, "")."""
    searched_rates = searched_learning_rates(study)
    if searched_rates is None or searched_rates[0] not in study.inferred:
        return base, ""
    name, rates = searched_rates
    parameter = base.parameters[name]
    if not parameter.numeric:
        return base, ""
    best, tried = float(rates[study.ranked()[0].index]), np.unique(rates[np.isfinite(rates)])
    if len(tried) > MAX_FEW_RATES or not best > 0:
        return base, ""
    ends = min(best / SWEEP_END_FACTOR, float(tried[0])), max(best * SWEEP_END_FACTOR, float(tried[-1]))
    low, high = (round_significant(end, 3) for end in ends)
    why = f"a decade on each side of {plain_number(best)}, the best of the {spelled(len(tried), 'rate')} that were tried"
    wider = parameter.model_copy(update={"low": low, "high": high, "scale": "log", "why": why})
    return base.with_parameter(name, wider), f"Sweep {name}: {plain_number(low)} to {plain_number(high)}"


def more_trials_goal(spec: StudySpec, narrowed: Collection[str] = ()) -> str:
    """Return the goal of a study with more trials of the same space, or of a study that narrows the ranges in `narrowed`."""
    names = list(narrowed or spec.searched)
    ranges = [f"{n} {plain_number(p.low)} to {plain_number(p.high)}" for n in narrowed if (p := spec.parameters[n]).numeric]
    names_text = ", ".join((ranges or names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"Try {count(spec.trials or 1, 'more setting')}{':' if ranges else ' of'} {names_text}"


def missing_trial_count(study: Study, base: StudySpec, evidence: ExplorationEvidence, at_end: bool) -> int:
    """Return the number of further trials that answer the open questions. The number is at most the number of existing trials,
    or what is missing to `TRIALS_FOR_RATE_ONLY`."""
    searched_count, tried, needed_trials = len(base.searched), settings.read_settings(study), 0
    if evidence.effect != "fine" or evidence.variation != "fine" or at_end:
        needed_trials = trials_needed(evidence.effect, searched_count)
    if still_compares_values(study, base):
        needed_trials = max(needed_trials, trials_needed("cannot be told", searched_count))
    return min(max(needed_trials - tried.result_count, 0), max(int(study.ended.sum()), TRIALS_FOR_RATE_ONLY - len(tried)))


def still_compares_values(study: Study, spec: StudySpec) -> bool:
    """Return whether the next study still compares the values of a hyperparameter, as the analysed study's file declares."""
    return any(p.role == "scientific" and name not in study.inferred for name, p in spec.searched.items())
