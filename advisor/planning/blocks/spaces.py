"""Compares search spaces, and finds the trials that count as data of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advisor.model.space import HyperparameterValue
from advisor.model.spec import StudySpec
from advisor.planning.blocks.model import TrainedTrial
from advisor.planning.designs.exploit import with_reopened_parameters
from advisor.planning.sampling.adaptive import Observation


def steps_per_trial(spec: StudySpec) -> int:
    """Return the number of steps of a trial; 1 if unknown, so that a budget in steps becomes a budget in trials."""
    return spec.max_train_steps or 1


def enclosing_space(before: StudySpec, after: StudySpec) -> StudySpec:
    """Return the later study, with ranges and choices that also cover the earlier study's ranges and choices, because the
    sampler avoids bad regions anyway. Hyperparameters that the later study fixes stay fixed."""
    parameters = dict(after.parameters)
    for name, old in before.searched.items():
        new = parameters.get(name)
        if new is not None and new.choices and old.choices and name in after.searched:
            new_choices = tuple(v for v in new.choices if v not in old.choices)
            parameters[name] = new.model_copy(update={"choices": (*old.choices, *new_choices)})
            continue
        if new is None or not (old.numeric and new.numeric) or new.low is None or new.high is None:
            continue
        low, high = min(old.low or 0.0, new.low), max(old.high or 0.0, new.high)
        if not (new.scale == "log" and low <= 0):
            parameters[name] = new.model_copy(update={"low": low, "high": high})
    return after.model_copy(update={"parameters": parameters})


def same_space(spec: StudySpec, other: StudySpec) -> bool:
    """Return whether both studies search the same values with the same length and schedule of training."""
    return _search_domains(spec) == _search_domains(other) and same_length_and_schedule(spec, other)


def changed_hyperparameters(before: StudySpec, after: StudySpec) -> list[str]:
    """Return the hyperparameters that the later study searches in addition, or with other range ends or choices."""
    old, new = _search_domains(before), _search_domains(after)
    return [name for name in new if new[name] != old.get(name)]


def _search_domains(spec: StudySpec) -> dict[str, dict[str, object]]:
    return {n: p.domain.model_dump(exclude={"limits", "type"}) for n, p in with_reopened_parameters(spec).searched.items()}


def same_length_and_schedule(spec: StudySpec, other: StudySpec) -> bool:
    """Return whether both studies have the same length and schedule of training."""
    return steps_per_trial(spec) == steps_per_trial(other) and dict(spec.schedule or {}) == dict(other.schedule or {})


def trials_of_same_length(spec: StudySpec, trials: Sequence[TrainedTrial]) -> list[TrainedTrial]:
    """Return the trials with the study's number of steps and schedule, inside or outside its search space."""
    length_and_schedule = steps_per_trial(spec), dict(spec.schedule or {})
    return [t for t in trials if t.probe is None and (t.steps, dict(t.schedule)) == length_and_schedule]


def trials_within_space(spec: StudySpec, trials: Sequence[TrainedTrial]) -> list[TrainedTrial]:
    """Return the trials in the study's space with its number of steps and schedule."""
    return [t for t in trials_of_same_length(spec, trials) if _space_contains(spec, spec.with_computed_values(t.params))]


def earlier_space_covers(before: StudySpec, spec: StudySpec, params: Mapping[str, HyperparameterValue]) -> bool:
    """Return whether the space `before` has all searched hyperparameters of the study and contains the trial."""
    return spec.searched.keys() <= before.parameters.keys() and _space_contains(before, spec.with_computed_values(params))


def _space_contains(spec: StudySpec, params: Mapping[str, HyperparameterValue]) -> bool:
    is_inside_ranges = all(p.allows_logged_value(params[name]) for name, p in spec.searched.items() if name in params)
    return is_inside_ranges and spec.forbidden_region_of(params) is None


def sampler_observations(spec: StudySpec, trials: Sequence[TrainedTrial]) -> list[Observation]:
    """Return all trials with the study's steps and schedule as observations for the sampler, also outside the space."""
    sign = 1.0 if spec.objective.direction == "minimize" else -1.0
    trials = trials_of_same_length(spec, trials)
    return [Observation(spec.with_computed_values(t.params), None if t.failed else sign * t.cost) for t in trials]
