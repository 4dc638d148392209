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

REPEAT_GOAL = "Repeat the best setting"
"""Start of the goal of a study that repeats the best setting."""


def repeat_goal(seeds: int) -> str:
    """Return the goal of a study that repeats the best setting with this number of seeds."""
    return f"{REPEAT_GOAL}: {seeds} seeds, to measure the variation between them"


def reseed(study: Study, base: StudySpec, *, unnamed: bool = False) -> StudySpec | None:
    """Return the study that repeats the best trial; None if there is no best trial or it has already been repeated.

    unnamed: repeat a trial that logged no hyperparameters, too.
    """
    ranked = study.ranked()
    if not ranked or not (ranked[0].params or unnamed) or _runs_of_best(study) >= SEEDS:
        return None
    again = RepeatTrial(parameters=dict(ranked[0].params), seeds=SEEDS, why="the trial variance is not known well")
    spec = again.apply(base)
    update = {
        "study": name_of_round(base, base.round),
        "goal": repeat_goal(SEEDS),
        "notes": (),
    }
    return spec.model_copy(update=update)


def _runs_of_best(study: Study) -> int:
    """Return the number of runs with the best trial's setting."""
    best = repeats.key(study.ranked()[0])
    return next((len(s.trials) for s in repeats.settings(study) if repeats.key(s.trials[0]) == best), 0)
