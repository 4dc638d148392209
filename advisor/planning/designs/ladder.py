"""The design `ladder`: fewer hyperparameters, if there are too few trials for all of them.

Playbook: "How should Adam's hyperparameters be tuned?": the number of trials decides how many hyperparameters are tuned.

*When.* Even twice as many trials would not show a quadratic response of all searched hyperparameters: for example, 12 trials of
six.

*What.* As many hyperparameters as the trials can show, at least two and every learning rate: learning rates first, then those that
matter most, if an effect was found. With fewer trials than are needed to tune a learning rate, only learning rates are searched.
The others are fixed at the best trial's values, which were good together; medians of several good trials were never tried together.
The final adaptive search opens them again. The notes state the effect that would be found, and the alternative of searching all of
them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from advisor.computed.space import importance, settings
from advisor.model import parameter_kinds
from advisor.model.change import FixParameter
from advisor.model.optimizers import RATE_TRIALS
from advisor.model.prediction import round_significant
from advisor.model.space import as_number, is_learning_rate
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.usual_rates import HALF_DECADE
from advisor.model.words import clean, count, listed
from advisor.planning import price
from advisor.planning.base import best_setting
from advisor.planning.states import settings_needed

MIN_SEARCHED = 2
"""Minimum number of hyperparameters that the ladder keeps, unless there are too few trials for more than a learning rate."""
DECADE = 10.0
"""Maximum ratio between the best learning rate and the ends of its range in a search of the rate alone."""
UNPRUNED = (
    "Train these trials to their end, without pruning: early results selected the complete trials so far, so the best settings at "
    "full length may be among those that were pruned."
)
"""Note for the trials that follow a study whose complete trials were selected by early results."""
CLEAR = 0.2
"""Minimum importance that decides which hyperparameter to keep; less is hardly told from noise with so few trials. Our choice."""


def ladder(study: Study, base: StudySpec, keep: Collection[str] = ()) -> StudySpec | None:
    """Return the study of fewer hyperparameters; None if there are enough trials for all, or no values at which to fix the others.

    keep: hyperparameters that stay in any case.
    """
    tried = settings.read(study)
    if enough(tried.successes, base) or study.spec.sampler.kind == "adaptive":
        return None
    rate_only = len(tried) < RATE_TRIALS and any(map(is_learning_rate, base.searched))
    trials = RATE_TRIALS if rate_only else max(len(tried), settings_needed(MIN_SEARCHED))
    number = "one trial is" if tried.successes == 1 else f"{tried.successes} trials are"
    why = f"fixed for now: {number} too few to search {len(base.searched)} hyperparameters"
    spec = narrowed(study, base, trials, why, keep, least=1 if rate_only else MIN_SEARCHED)
    if spec is None:
        return None
    spec = _below_failures(study, spec.model_copy(update={"trials": trials}))
    spec = _beyond_best(study, spec, keep) if rate_only else spec
    every = settings_needed(len(base.searched))
    notes = (
        *spec.notes,
        *([UNPRUNED] if settings.selected_early(study) else []),
        price.power_of(study, 0, trials, len(spec.searched)),
        f"The alternative is to search all {len(base.searched)} hyperparameters, which takes about {every} trials.",
    )
    few = f"{count(tried.successes, 'trial')} cannot show the effects of {len(base.searched)} hyperparameters"
    goal = f"Search only {listed(map(clean, spec.searched), limit=4)}: {few}"
    return spec.model_copy(update={"goal": goal, "notes": notes})


def enough(trials: int, spec: StudySpec) -> bool:
    """Return whether the trials, or at most twice as many, show a quadratic response of all searched hyperparameters."""
    return 2 * trials >= settings_needed(len(spec.searched))


def narrowed(
    study: Study, spec: StudySpec, trials: int, why: str, keep: Collection[str] = (), least: int = MIN_SEARCHED
) -> StudySpec | None:
    """Return the study with only as many hyperparameters as `trials` show, at least `least`; None if none would be fixed.

    why: the reason to fix the others. keep: hyperparameters that stay in any case.
    """
    setting = best_setting(study, spec)
    names = [
        n
        for n, p in spec.searched.items()
        if n in setting and n not in keep and (p.role == "nuisance" or _has_one_usable_value(study, n))
    ]
    others = len(spec.searched) - len(names)
    number = max((k for k in range(len(names)) if settings_needed(k + others) <= trials), default=0)
    if least == 1:
        number = 0
    rates = sum(is_learning_rate(n) for n in names)
    fixed = _by_relevance(names, importance.shares(study))[max(number, least - others, rates) :]
    for name in (n for n in names if n in fixed):
        reason = f"{why}; the best trial's value"
        spec = FixParameter(parameter=name, value=setting[name], why=reason, for_now=True).apply(spec)
    return spec if fixed else None


def _has_one_usable_value(study: Study, name: str) -> bool:
    """Return whether all usable trials have the same value of this choice, which no study file declares."""
    parameter = study.searched.get(name)
    if parameter is None or not parameter.options or name not in study.inferred:
        return False
    return len({t.params.get(name) for t in study.ranked()}) == 1


def _below_failures(study: Study, spec: StudySpec) -> StudySpec:
    """Return the study with a range of learning rates whose upper end lies between the highest usable rate and the rates that
    diverged.

    The range ends at most a decade above the highest usable rate, or half a decade if a lower rate is best. It begins a factor of 3
    below the best rate if that rate lies at the low end. A few failures do not prove that a rate is too high, but the study's few
    trials show more below it.
    """
    good, failed = study.ranked(), [t for t in study.trials if t.status == "diverged"]
    for name in filter(is_learning_rate, spec.searched):
        old = spec.parameters[name]
        usable, bad = ([as_number(t.params[name]) for t in trials if name in t.params] for trials in (good, failed))
        if not usable or not bad or old.high is None or not 0 < max(usable) < min(bad):
            continue
        best = as_number(good[0].params.get(name))
        reach = 10.0 if best == max(usable) else HALF_DECADE
        high = round_significant(min(math.sqrt(max(usable) * min(bad)), reach * max(usable)), 2)
        low = old.low if old.low is None or not best < 3 * old.low else round_significant(best / 3, 2)
        if low is not None and low < high < old.high:
            failed_at = (
                f"{'every trial' if len(bad) > 1 else 'the trial'} at {min(bad):.3g}{' or above' * (len(bad) > 1)}"
            )
            trained = f"the highest rate that trained is {max(usable):.3g}"
            why = f"ends at {high:g} instead of {old.high:g}: {trained}, and {failed_at} diverged"
            spec = spec.with_parameter(name, old.model_copy(update={"low": low, "high": high, "why": why}))
    return spec


def _beyond_best(study: Study, spec: StudySpec, keep: Collection[str]) -> StudySpec:
    """Return the study with learning rates that reach half a decade beyond the best rate, if no trial had a rate beyond it.

    With so few trials, no rule can tell if results improve there. On a side with other trials, the range reaches at most a
    decade, unless early results selected the complete trials. keep: hyperparameters whose ranges findings changed; they stay.
    """
    reach = math.inf if settings.selected_early(study) else DECADE
    for name in (n for n in spec.searched if is_learning_rate(n) and n not in keep):
        old, best = spec.parameters[name], as_number(study.ranked()[0].params.get(name))
        tried = [as_number(t.params[name]) for t in study.trials if study.ended[t.index] and name in t.params]
        if old.low is None or old.high is None or old.scale != "log" or not best > 0 or len(set(tried)) < 2:
            continue
        least, most = old.reach
        near = round_significant(best / reach, 2), round_significant(best * reach, 2)
        low = (
            min(old.low, max(round_significant(best / HALF_DECADE, 2), least))
            if best <= min(tried)
            else max(old.low, near[0])
        )
        high = (
            max(old.high, min(round_significant(best * HALF_DECADE, 2), most))
            if best >= max(tried)
            else min(old.high, near[1])
        )
        if low < high and (low, high) != (old.low, old.high):
            side = "lowest" if low < old.low else "highest"
            why = f"at most a decade around the best rate, {best:.3g}"
            if low < old.low or high > old.high:
                why = f"the best trial has the {side} rate, {best:.3g}, so the range reaches half a decade beyond it"
            spec = spec.with_parameter(name, old.model_copy(update={"low": low, "high": high, "why": why}))
    return spec


def _by_relevance(names: list[str], shares: Mapping[str, float]) -> list[str]:
    """Return the names: learning rates first, then by importance if it is clear, then the optimizer's, then regularisers.

    A limit on gradient norms comes last: it interacts least with the others.
    """
    return sorted(
        names,
        key=lambda n: (
            not is_learning_rate(n),
            -shares.get(n, 0.0) if shares.get(n, 0.0) >= CLEAR else 0.0,
            parameter_kinds.is_clipping_threshold(n),
            not parameter_kinds.belongs_to_optimizer(n),
            not parameter_kinds.is_regulariser(n),
        ),
    )
