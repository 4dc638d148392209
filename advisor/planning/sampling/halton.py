"""Draws trials from a study's space with a scrambled, shifted Halton sequence, the playbook's choice for exploration.

Playbook: "Why use quasi-random search instead of more sophisticated black box optimization algorithms during the exploration
phase of tuning?". Scrambling and shifting follow Bousquet et al., "Critical Hyper-Parameters: No Random, No Cry", 2017."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle, islice

import numpy as np

from advisor.model import formula
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray, HyperparameterValue
from advisor.model.spec import StudySpec
from advisor.stats.halton import Halton

MAX_SEQUENCE_LENGTH = 1_000_000
"""Maximum number of trials in a sequence. No study has more trials, and more points would take too long to skip one by one."""
_MAX_CONSECUTIVE_FORBIDDEN_POINTS = 1000
"""Number of consecutive points in forbidden regions at which an error rejects the search space."""
_POINTS_PER_BLOCK = 256


def draw_trials(spec: StudySpec, count: int, *, skip: int = 0) -> Iterator[dict[str, HyperparameterValue]]:
    """Yield `count` trials of the study after the first `skip` trials of its sequence, each as {parameter: value} with fixed
    and derived parameters.

    The trials of a study are the same on every platform and do not depend on the order of its parameters. A larger `count`
    continues the same sequence. If the condition (`when`) of a parameter is not met in a trial, the trial lacks this parameter.
    Points in forbidden regions are skipped. If a single list of choices is the only searched hyperparameter, every choice
    appears once before any choice is repeated. If the study lists `settings`, the function yields these settings in order, and
    starts again after the last one. Raises AdvisorError if a number is invalid or the study's sampler is adaptive."""
    if count < 0 or skip < 0 or count + skip > MAX_SEQUENCE_LENGTH:
        limits = f"must not be negative, and their sum must not exceed {MAX_SEQUENCE_LENGTH:,}"
        raise AdvisorError(f"the numbers of trials to draw and to skip {limits}")
    if spec.sampler.kind == "adaptive":
        raise AdvisorError(
            "an adaptive sampler draws each trial from the results so far: use `advisor run`, or call "
            "advisor.planning.sampling.adaptive.suggest_trial with your results"
        )
    if spec.settings:
        return islice((_complete_setting(spec, setting) for setting in cycle(spec.settings)), skip, skip + count)
    searched_names = sorted(spec.searched)
    # Without forbidden regions, no point is rejected, so start directly at point `skip`.
    first, allowed = (0, skip) if spec.forbidden else (skip, 0)
    return islice(_allowed_trials(spec, searched_names, first), allowed, allowed + count)


def _complete_setting(spec: StudySpec, setting: Mapping[str, HyperparameterValue]) -> dict[str, HyperparameterValue]:
    trial = spec.with_computed_values(_active_parameters(spec, {**spec.fixed_values, **setting}))
    return {name: trial[name] for name in spec.parameters if name in trial}


def _allowed_trials(spec: StudySpec, searched_names: list[str], first: int) -> Iterator[dict[str, HyperparameterValue]]:
    """Yield the trials that lie in no forbidden region, starting at point number `first` of the sequence."""
    consecutive_forbidden = 0
    for position in _halton_points(spec, len(searched_names), first):
        trial = trial_at_position(spec, position)
        if spec.forbidden_region_of(trial) is None:
            consecutive_forbidden = 0
            yield trial
        elif (consecutive_forbidden := consecutive_forbidden + 1) == _MAX_CONSECUTIVE_FORBIDDEN_POINTS:
            raise AdvisorError(
                f"the study's forbidden regions contain {_MAX_CONSECUTIVE_FORBIDDEN_POINTS:,} points in a row, so they "
                "cover almost all of its space; search other ranges"
            )


def trial_at_position(spec: StudySpec, position: FloatArray | Sequence[float]) -> dict[str, HyperparameterValue]:
    """Return the trial at a position in the unit cube: a coordinate in [0, 1) per searched parameter, sorted by name."""
    names = sorted(spec.searched)
    drawn = {name: spec.parameters[name].draw(float(u)) for name, u in zip(names, position, strict=True)}
    values = {**spec.fixed_values, **drawn}
    single_options = {n: p.options[0] for n, p in spec.parameters.items() if n not in values and p.options}
    trial = spec.with_computed_values(_active_parameters(spec, {**values, **single_options}))
    for name, parameter in spec.parameters.items():
        if parameter.formula is None or name in trial or not _is_condition_met(spec, name, trial):
            continue
        if formula.parse_formula(parameter.formula).names <= trial.keys():
            details = f"its formula is {parameter.formula!r} and the trial is {json.dumps(trial)}"
            raise AdvisorError(f"{name!r} has no finite value: {details}")
    return {name: trial[name] for name in spec.parameters if name in trial}


def _halton_points(spec: StudySpec, dimensions: int, first: int) -> Iterator[FloatArray]:
    """Yield the points of the study's infinite sequence, starting at point number `first`. Shape (dimensions,), from 0 to 1."""
    rng = np.random.default_rng(spec.sampler.seed)
    if spec.sampler.kind == "random" or dimensions == 0:
        rng.random((first, dimensions))
        while True:
            yield from rng.random((_POINTS_PER_BLOCK, dimensions))
    choices = [p.options for p in spec.searched.values() if p.options]
    if dimensions == 1 and choices:
        choice_order = (rng.permutation(len(choices[0])) + 0.5) / len(choices[0])
        for number in count(first):
            yield choice_order[[number % len(choice_order)]]
    shift = rng.random(dimensions)
    halton_sequence = Halton(dimensions, rng)
    for start in count(first, _POINTS_PER_BLOCK):
        yield from (halton_sequence.points(start, _POINTS_PER_BLOCK) + shift) % 1.0


def _active_parameters(spec: StudySpec, values: dict[str, HyperparameterValue]) -> dict[str, HyperparameterValue]:
    return {n: values[n] for n in spec.parameters if n in values and _is_condition_met(spec, n, values)}


def _is_condition_met(spec: StudySpec, name: str, values: dict[str, HyperparameterValue]) -> bool:
    conditions = spec.parameters[name].when or {}
    return all(values.get(p) == wanted and _is_condition_met(spec, p, values) for p, wanted in conditions.items())
