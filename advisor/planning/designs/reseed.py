"""The design `reseed`: repeat the best trial with other seeds.

Playbook: "Determining whether to adopt a training pipeline change or hyperparameter configuration".

*When.* A decision depends on how far results differ by chance: the rule `adopt` asks for it if a lead may be due to seeds, and it
follows every study in which nothing is left to change.

*What.* One setting, every hyperparameter fixed, trained with N seeds. `adopt` says how many; otherwise five. A setting that has as
many runs already is not repeated.
"""

from __future__ import annotations

from advisor.computed.decision import repeats
from advisor.model.change import RepeatTrial
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.planning.base import name_of_round

SEEDS = 5
"""Seeds of the best trial if no rule says how many; ours: the minimum that shows a spread."""

REPEAT_GOAL = "Measure trial variance: repeat the best trial with other seeds"


def reseed(study: Study, base: StudySpec) -> StudySpec | None:
    """Return the study that repeats the best trial; None if there is no best trial or it was repeated already."""
    ranked = study.ranked()
    if not ranked or not ranked[0].params or _runs_of_best(study) >= SEEDS:
        return None
    again = RepeatTrial(parameters=dict(ranked[0].params), seeds=SEEDS, why="the trial variance is not known well")
    update = {"study": name_of_round(base, base.round), "goal": REPEAT_GOAL}
    return again.apply(base).model_copy(update=update)


def _runs_of_best(study: Study) -> int:
    """Number of runs of the best trial's setting."""
    best = repeats.key(study.ranked()[0])
    return next((len(s.trials) for s in repeats.settings(study) if repeats.key(s.trials[0]) == best), 0)
