"""The design `reseed`: repeat the best trial with other seeds.

Playbook: "Determining whether to adopt a training pipeline change or hyperparameter configuration".

*When.* A decision depends on the variation between seeds: the rule `adopt` requests the design if a lead may be due to seeds.
It also follows every study after which nothing is left to change.

*What.* One setting, with every hyperparameter fixed, is trained with N seeds. The rule `adopt` chooses N; the default is five. A
setting that already has N runs is not repeated.
"""

from __future__ import annotations

from advisor.computed.decision import repeats
from advisor.model.change import RepeatTrial
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.base import name_of_round

SEEDS = 5
"""Default number of seeds for the best trial; our choice: the smallest number that shows the variation between seeds."""

REPEAT_GOAL = "Measure trial variance: repeat the best trial with other seeds"


def reseed(study: Study, base: StudySpec) -> StudySpec | None:
    """Return the study that repeats the best trial; None if there is no best trial or it has already been repeated."""
    ranked = study.ranked()
    if not ranked or not ranked[0].params or _runs_of_best(study) >= SEEDS:
        return None
    again = RepeatTrial(parameters=dict(ranked[0].params), seeds=SEEDS, why="the trial variance is not known well")
    update = {"study": name_of_round(base, base.round), "goal": REPEAT_GOAL}
    return again.apply(base).model_copy(update=update)


def _runs_of_best(study: Study) -> int:
    """Return the number of runs with the best trial's setting."""
    best = repeats.key(study.ranked()[0])
    return next((len(s.trials) for s in repeats.settings(study) if repeats.key(s.trials[0]) == best), 0)
