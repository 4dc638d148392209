"""The design `ladder`: fewer hyperparameters, if there are too few trials for all of them.

Playbook: "How should Adam's hyperparameters be tuned?": the number of trials decides how many hyperparameters are tuned.

*When.* Even twice as many trials would not show a quadratic response of all searched hyperparameters: 12 trials of six.

*What.* As many hyperparameters as the trials can show, at least two and every learning rate: learning rates first, then those that
matter most, if an effect was found. The others are fixed at the best trial's values; the final adaptive search opens them again.
The notes state the effect that would be found, and the alternative of searching all of them.
"""

from __future__ import annotations

from collections.abc import Collection

from advisor.computed.space import importance, settings
from advisor.model import parameter_kinds
from advisor.model.change import FixParameter
from advisor.model.finding import MissingData
from advisor.model.space import is_learning_rate
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.words import listed
from advisor.planning import price
from advisor.planning.base import best_setting
from advisor.planning.states import FALSE_ALARMS, settings_needed

MIN_SEARCHED = 2
"""Minimum number of hyperparameters that the ladder keeps."""


def ladder(study: Study, base: StudySpec) -> StudySpec | None:
    """Return the study of fewer hyperparameters; None if there are enough trials for all, or nothing to fix the others at."""
    tried = settings.read(study)
    trials = max(len(tried), settings_needed(MIN_SEARCHED))
    if enough(tried.successes, base) or study.spec.sampler.kind == "adaptive":
        return None
    why = f"fixed for now: {tried.successes} trials are too few to search {len(base.searched)} hyperparameters"
    spec = narrowed(study, base, trials, why)
    if spec is None:
        return None
    spec = spec.model_copy(update={"trials": trials})
    every = settings_needed(len(base.searched))
    notes = (
        *spec.notes,
        price.power_of(study, 0, trials, len(spec.searched)),
        f"The alternative is to search all {len(base.searched)} hyperparameters, which takes about {every} trials.",
    )
    goal = f"Narrow the search to {listed(spec.searched, limit=4)}: {trials} trials, the others fixed"
    return spec.model_copy(update={"goal": goal, "notes": notes})


def enough(trials: int, spec: StudySpec) -> bool:
    """Return whether the trials, or at most twice as many, show a quadratic response of all searched hyperparameters."""
    return 2 * trials >= settings_needed(len(spec.searched))


def narrowed(study: Study, spec: StudySpec, trials: int, why: str, keep: Collection[str] = ()) -> StudySpec | None:
    """Return the study with only as many hyperparameters as `trials` show; None if there is none to fix at the best setting.

    why: the reason to fix the others. keep: hyperparameters that stay in any case.
    """
    setting = best_setting(study, spec)
    names = [n for n in spec.searched if n in setting and n not in keep and spec.parameters[n].role == "nuisance"]
    others = len(spec.searched) - len(names)
    number = max((k for k in range(len(names)) if settings_needed(k + others) <= trials), default=0)
    rates = sum(is_learning_rate(n) for n in names)
    fixed = _by_relevance(study, names)[max(number, MIN_SEARCHED - others, rates) :]
    for name in (n for n in names if n in fixed):
        spec = FixParameter(parameter=name, value=setting[name], why=why, for_now=True).apply(spec)
    return spec if fixed else None


def _by_relevance(study: Study, names: list[str]) -> list[str]:
    """Return the names: learning rates first, then by importance if an effect was found, else the optimizer's others first."""
    shares: dict[str, float] = {}
    try:
        found = importance.read(study)
        if found.p <= FALSE_ALARMS:
            shares = dict(zip(found.names, found.total.mean(axis=0).tolist(), strict=True))
    except MissingData:
        pass
    return sorted(
        names,
        key=lambda n: (
            not is_learning_rate(n),
            -shares.get(n, 0.0),
            not parameter_kinds.is_of_optimizer(n),
            not parameter_kinds.is_regulariser(n),
        ),
    )
