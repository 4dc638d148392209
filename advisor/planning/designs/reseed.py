"""The design `reseed`: repeat the best trial with other seeds.

Playbook: "Determining whether to adopt a training pipeline change or hyperparameter configuration".

*When.* A decision depends on the variation between seeds: the rule `adopt` requests the design if the lead of the best setting
may be due to the choice of seeds. The design also follows every study after which nothing is left to change.

*What.* One setting, with every hyperparameter fixed, is trained with N seeds. The rule `adopt` chooses N; the default is five.
A setting that already has N runs is not repeated. A study that compares a few settings repeats all."""

from __future__ import annotations

from advisor.computed.decision import repeats
from advisor.model.change import RepeatTrial
from advisor.model.spec import StudySpec
from advisor.model.study import Study
from advisor.model.words import clean, listed, setting
from advisor.planning.base import round_study_name

DEFAULT_REPEAT_SEEDS = 5
"""Default number of seeds for the best trial. Fewer seeds would not show the variation between seeds."""

REPEAT_GOAL = "Repeat the best setting"
"""First words of the goal of a study that repeats the best setting."""


def repeat_goal(spec: StudySpec) -> str:
    """Return the goal of a study that repeats the best setting, or that repeats several settings to compare them."""
    if not spec.settings:
        return f"{REPEAT_GOAL}: {spec.seeds} seeds, to measure the variation between them"
    compared_parameters = list(spec.searched.items())
    if len(compared_parameters) == 1:
        name, parameter = compared_parameters[0]
        return f"Compare {clean(name)}: {listed([setting(v) for v in parameter.options], limit=6)}, {spec.seeds} seeds each"
    return f"Compare {len(spec.settings)} settings: {spec.seeds} seeds each"


def repeat_best_trial(study: Study, base: StudySpec, *, unnamed: bool = False) -> StudySpec | None:
    """Return the study that repeats the best trial, or None if no trial has a result or the best trial was already repeated.

    unnamed: if True, also repeat a trial that logged no hyperparameters."""
    ranked = study.ranked()
    if not ranked or not (ranked[0].params or unnamed):
        return None
    best_key = repeats.key(ranked[0])
    own = [s for s in repeats.full_length_settings(study) if repeats.key(s.trials[0]) == best_key]
    compared = [s for s in repeats.compared_settings(study) if s not in own]
    if min((len(s.trials) for s in (*own, *compared)), default=0) >= DEFAULT_REPEAT_SEEDS:
        return None
    change = RepeatTrial(
        parameters=dict(ranked[0].params),
        rivals=tuple(dict(s.params) for s in compared),
        seeds=DEFAULT_REPEAT_SEEDS,
        why="the variation between seeds is not known well",
    )
    spec = change.apply(base)
    goal = repeat_goal(spec)
    if not ranked[0].params and ranked[0].commit:  # without hyperparameters, the code commit identifies the setting
        goal = f"{REPEAT_GOAL}, commit {clean(ranked[0].commit[:12])}{goal.removeprefix(REPEAT_GOAL)}"
    return spec.model_copy(update={"study": round_study_name(base, base.round), "goal": goal, "notes": base.notes})
