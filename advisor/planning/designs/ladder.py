"""The design `ladder`: a search of fewer hyperparameters, if there are too few trials to search all of them.

Playbook: "How should Adam's hyperparameters be tuned?": the number of trials decides how many hyperparameters are tuned.

*When.* Even twice as many trials would be too few to estimate a quadratic response to all searched hyperparameters, for example
if 12 trials search six hyperparameters.

*What.* A search of as many hyperparameters as the number of trials allows, but at least two and every learning rate. Learning
rates come first, followed by the hyperparameters that matter most, if an effect was found. With too few trials to tune even a
learning rate, only learning rates are searched. All other hyperparameters are fixed at the best trial's values until the final
adaptive search."""

from __future__ import annotations

import math
from collections.abc import Collection

from advisor.computed.space import importance, settings
from advisor.model import parameter_kinds
from advisor.model.change import FixParameter
from advisor.model.optimizers import TRIALS_FOR_RATE_ONLY
from advisor.model.prediction import round_significant
from advisor.model.space import as_number, is_learning_rate
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.usual_rates import HALF_DECADE
from advisor.model.words import clean, count, listed
from advisor.planning import price
from advisor.planning.base import best_trial_setting
from advisor.planning.states import settings_needed

MIN_SEARCHED_PARAMETERS = 2
"""Minimum number of hyperparameters in a search of fewer hyperparameters, unless only a rate is searched."""
MAX_RATE_END_RATIO = 10.0
"""Maximum ratio between the best learning rate and each end of its range, in a search of only the learning rate."""
TRAIN_WITHOUT_PRUNING_NOTE = (
    "Train these trials to their end, without pruning: early results selected the complete trials so far, so the best settings at "
    "full length may be among the pruned trials."
)
"""Note in a study that follows a study in which pruning by early results selected the complete trials."""
MIN_KEPT_IMPORTANCE = 0.2
"""Minimum importance at which a hyperparameter is kept in the search; importance is the share of the variation between settings
that the hyperparameter explains. With so few trials, a smaller importance may be noise. Our choice."""


def smaller_search(study: Study, base: StudySpec, keep: Collection[str] = ()) -> StudySpec | None:
    """Return a study that searches fewer hyperparameters, or None if the trials are enough to search all hyperparameters or no
    trial has values at which to fix some of them.

    keep: hyperparameters that the study searches in any case."""
    tried_settings = settings.read_settings(study)
    if enough_trials_for_response(tried_settings.result_count, base) or study.spec.sampler.kind == "adaptive":
        return None
    only_rate = len(tried_settings) < TRIALS_FOR_RATE_ONLY and any(map(is_learning_rate, base.searched))
    trials = TRIALS_FOR_RATE_ONLY if only_rate else max(len(tried_settings), settings_needed(MIN_SEARCHED_PARAMETERS))
    trial_count_text = "one trial is" if tried_settings.result_count == 1 else f"{tried_settings.result_count} trials are"
    why = f"fixed for now: {trial_count_text} too few to search {len(base.searched)} hyperparameters"
    spec = search_fewer_hyperparameters(study, base, trials, why, keep, least=1 if only_rate else MIN_SEARCHED_PARAMETERS)
    if spec is None:
        return None
    spec = _with_range_below_failures(study, spec.model_copy(update={"trials": trials}))
    spec = _with_range_beyond_best(study, spec, keep) if only_rate else spec
    trials_for_all = settings_needed(len(base.searched))
    notes = (
        *spec.notes,
        *([TRAIN_WITHOUT_PRUNING_NOTE] if settings.was_heavily_pruned(study) else []),
        price.power_sentence(study, 0, trials, len(spec.searched)),
        f"The alternative is to search all {len(base.searched)} hyperparameters, which takes about {trials_for_all} trials.",
    )
    reason = f"{count(tried_settings.result_count, 'trial')} cannot show the effects of {len(base.searched)} hyperparameters"
    goal = f"Search only {listed(map(clean, spec.searched), limit=4)}: {reason}"
    return spec.model_copy(update={"goal": goal, "notes": notes})


def enough_trials_for_response(trials: int, spec: StudySpec) -> bool:
    """Return whether `trials`, or at most twice as many, suffice to estimate a quadratic response."""
    return 2 * trials >= settings_needed(len(spec.searched))


def search_fewer_hyperparameters(
    study: Study, spec: StudySpec, trials: int, why: str, keep: Collection[str] = (), least: int = MIN_SEARCHED_PARAMETERS
) -> StudySpec | None:
    """Return the study with only as many searched hyperparameters as `trials` allow, but at least `least`, or None if no
    hyperparameter would be fixed.

    why: the reason to fix the other hyperparameters. keep: hyperparameters that the study searches in any case."""
    setting = best_trial_setting(study, spec)
    names = []
    for name, p in spec.searched.items():
        # A list of choices that was inferred from trials may have only one value in all usable trials.
        is_inferred = name in study.inferred and study.searched.get(name, p).options
        is_single = bool(is_inferred) and name in study.searched and len({t.params.get(name) for t in study.ranked()}) == 1
        if name in setting and name not in keep and (p.role == "nuisance" or is_single):
            names.append(name)
    kept_count = len(spec.searched) - len(names)
    affordable_count = max((k for k in range(len(names)) if settings_needed(k + kept_count) <= trials), default=0)
    if least == 1:
        affordable_count = 0
    rates = sum(is_learning_rate(n) for n in names)
    importances = importance.mean_importances(study)
    # A clipping threshold comes late, because it hardly interacts with other hyperparameters.
    by_relevance = sorted(
        names,
        key=lambda n: (
            not is_learning_rate(n),
            -importances.get(n, 0.0) if importances.get(n, 0.0) >= MIN_KEPT_IMPORTANCE else 0.0,
            parameter_kinds.is_clipping_threshold(n),
            not parameter_kinds.belongs_to_optimizer(n),
            not parameter_kinds.is_regulariser(n),
        ),
    )
    names_to_fix = by_relevance[max(affordable_count, least - kept_count, rates) :]
    for name in (n for n in names if n in names_to_fix):
        reason = f"{why}; the best trial's value"
        spec = FixParameter(parameter=name, value=setting[name], why=reason, for_now=True).apply(spec)
    return spec if names_to_fix else None


def _with_range_below_failures(study: Study, spec: StudySpec) -> StudySpec:
    """Return the study with a learning-rate range whose upper end lies between the highest usable learning rate and the
    learning rates that diverged.

    The range ends at most a decade above the highest usable learning rate, or at most half a decade above it if a lower
    learning rate is the best. If the best learning rate lies at the low end of the range, the range begins a factor of 3 below
    the best rate. Lower learning rates are a better use of the few trials."""
    ranked, failed = study.ranked(), [t for t in study.trials if t.status == "diverged"]
    for name in filter(is_learning_rate, spec.searched):
        old = spec.parameters[name]
        usable, diverged = ([as_number(t.params[name]) for t in trials if name in t.params] for trials in (ranked, failed))
        if not usable or not diverged or old.high is None or not 0 < max(usable) < min(diverged):
            continue
        best_rate = as_number(ranked[0].params.get(name))
        max_factor = 10.0 if best_rate == max(usable) else HALF_DECADE
        high = round_significant(min(math.sqrt(max(usable) * min(diverged)), max_factor * max(usable)), 2)
        low = old.low
        if low is not None and best_rate < 3 * low:
            low = max(round_significant(best_rate / 3, 2), old.declared_limits[0])
        if low is not None and low < high < old.high:
            lowest = f"{min(diverged):.3g}"
            divergence_text = f"every trial at {lowest} or above" if len(diverged) > 1 else f"the trial at {lowest}"
            highest_rate_text = f"the highest rate that trained is {max(usable):.3g}"
            why = f"ends at {high:g} instead of {old.high:g}: {highest_rate_text}, and {divergence_text} diverged"
            spec = spec.with_parameter(name, old.model_copy(update={"low": low, "high": high, "why": why}))
    return spec


def _with_range_beyond_best(study: Study, spec: StudySpec, keep: Collection[str]) -> StudySpec:
    """Return the study. On each side of the best learning rate where no rate was tried, the range extends half a decade beyond
    the best rate.

    On a side where rates were tried, the range ends at most a decade beyond the best rate, unless pruning by early results
    selected the complete trials. keep: hyperparameters whose ranges must stay, because findings changed them."""
    max_factor = math.inf if settings.was_heavily_pruned(study) else MAX_RATE_END_RATIO
    for name in (n for n in spec.searched if is_learning_rate(n) and n not in keep):
        old, best = spec.parameters[name], as_number(study.ranked()[0].params.get(name))
        tried_rates = [as_number(t.params[name]) for t in study.trials if study.ended[t.index] and name in t.params]
        if old.low is None or old.high is None or old.scale != "log" or not best > 0 or len(set(tried_rates)) < 2:
            continue
        lowest, highest = old.declared_limits
        near_ends = round_significant(best / max_factor, 2), round_significant(best * max_factor, 2)
        low, high = max(old.low, near_ends[0]), min(old.high, near_ends[1])
        if best <= min(tried_rates):
            low = min(old.low, max(round_significant(best / HALF_DECADE, 2), lowest))
        if best >= max(tried_rates):
            high = max(old.high, min(round_significant(best * HALF_DECADE, 2), highest))
        if low < high and (low, high) != (old.low, old.high):
            best_end = "lowest" if low < old.low else "highest"
            why = f"at most a decade around the best rate, {best:.3g}"
            if low < old.low or high > old.high:
                why = f"the best trial has the {best_end} rate, {best:.3g}, so the range extends half a decade beyond it"
            spec = spec.with_parameter(name, old.model_copy(update={"low": low, "high": high, "why": why}))
    return spec
