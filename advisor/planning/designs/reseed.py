"""The plan `reseed`: the best trial again with other seeds.

Playbook: "Determining whether to adopt a training pipeline change or hyperparameter configuration".

*What calls for it.* A decision that hangs on how far results differ by chance: the rule `adopt` where a lead is within what seeds
may explain, and any study in which nothing is left to change, because then what is left is to trust its best trial.

*What it does.* One setting, every hyperparameter fixed, trained N times with other seeds. `adopt` says how many; otherwise five,
the fewest that show a spread. A setting that has as many runs already is not repeated.
"""

from __future__ import annotations

from advisor.computed.decision import repeats
from advisor.model.change import RepeatTrial
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.base import name_of_round

REPEATS = 5
"""Seeds with which the best trial is repeated when nothing else is left to do: the fewest that show a spread."""

REPEAT_GOAL = "Measure trial variance: the best trial again with other seeds"


def reseed(study: Study, base: StudySpec) -> StudySpec | None:
    """The best trial again; None where there is none, or where it was repeated already."""
    ranked = study.ranked()
    if not ranked or not ranked[0].params or _repeats_of_best(study) >= REPEATS:
        return None
    again = RepeatTrial(parameters=dict(ranked[0].params), seeds=REPEATS, why="the trial variance is not known well")
    update = {"study": name_of_round(base, base.round), "goal": REPEAT_GOAL}
    return again.apply(base).model_copy(update=update)


def _repeats_of_best(study: Study) -> int:
    """How many runs with different seeds the best trial's setting has."""
    best = repeats.key(study.ranked()[0])
    return next((len(s.trials) for s in repeats.settings(study) if repeats.key(s.trials[0]) == best), 0)
