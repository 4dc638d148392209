"""Creates the draft of the next study, to which findings apply their changes, and provides helpers for several study designs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from advisor.model import formula, parameter_kinds
from advisor.model.change import AddParameter, SetRange
from advisor.model.space import HyperparameterValue, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.model.words import clean, setting
from advisor.planning import roles
from advisor.planning.recipes.recipe import recipe_notes

VALIDATION_DATA_ADVICE = (
    "Set a part of the training data aside, log the objective on it, and choose trials by that metric instead of {metric}: data "
    "that chose the best trial make it look better than it is."
)

LENGTH_MISMATCH_NOTE = (
    "The trials ran to step {ran:,}, which is far from the max_train_steps of the study, {declared:,}: correct max_train_steps, or "
    "log both numbers in the same unit."
)
SAME_EPOCHS_NOTE = "A trial with {size} takes {length:,} steps for as many epochs as before, not {whole:,}."
MIN_LENGTH_MISMATCH_RATIO = 1.5
"""Minimum ratio of the trials' median last step to the declared `max_train_steps` at which a mismatch is reported. At such a
ratio, one of the two numbers is wrong, or their units differ."""
MIN_FULL_LENGTH_RATIO = 0.9
"""Minimum ratio of a trial's last step to the study's `max_train_steps` at which the trial counts as trained to full length."""

GOAL_AFTER_FIX = "Search again once this is done: "
"""First words of the goal of a study that may run only after the user has fixed something by hand."""
MIN_SEARCH_TRIALS = 5
"""Minimum number of trials in a search; with fewer trials, no rule about the search space has enough data."""


def initial_draft(study: Study) -> StudySpec:
    """Return the next study before any change: the analysed study or, after a probe, the study that the probe prepared. In both
    cases, the study has the next round number."""
    if study.spec.baseline is not None:
        return study.spec.baseline.model_copy(update={"round": study.spec.round + 1, "parent": study.spec.study})
    spec = study.spec
    best_setting = best_trial_setting(study, spec)
    parameters = {name: roles.parameter_in_next_study(study, name, best_setting) for name in spec.parameters}
    choices = [len(p.options) for p in parameters.values() if p.searched]
    gaps = [np.diff(c.steps) for t in study.trials if len(c := study.cost_curve(t)) > 2]
    usual_gap = int(np.median(np.concatenate(gaps))) if gaps else 0
    is_regular = usual_gap >= 1 and np.mean(np.concatenate(gaps) == usual_gap) > 0.9
    return StudySpec(
        study=spec.study,
        round=spec.round + 1,
        parent=spec.study,
        objective=spec.objective,
        parameters=parameters,
        forbidden=spec.forbidden,
        trials=max(spec.trials or int(study.ended.sum()), 1, *choices),
        sampler=spec.sampler,
        max_train_steps=_max_train_steps(study, parameters),
        final_train_steps=spec.final_train_steps,
        evaluate_every=spec.evaluate_every or (usual_gap if is_regular else None),
        checkpoints=spec.checkpoints,
        seeds=spec.seeds,
        schedule=spec.schedule,
        notes=tuple(_next_study_notes(study, parameters)),
        reading=spec.reading,
    )


def round_study_name(spec: StudySpec, number: int) -> str:
    return re.sub(r"-round-\d+$", "", spec.study) + f"-round-{number}"


def best_trial_setting(study: Study, spec: StudySpec) -> dict[str, HyperparameterValue]:
    """Return the best trial's values of the hyperparameters in `spec`; empty if no trial has a result. If the analysed study is
    a probe with a baseline, return the values that the probe fixes."""
    values: dict[str, HyperparameterValue] = {}
    if study.probe is not None and study.spec.baseline is not None:
        values = {n: p.value for n, p in study.spec.parameters.items() if p.value is not None}
    elif ranked_trials := study.ranked():
        return trial_setting(ranked_trials[0], spec)
    return {n: v for n, v in spec.with_computed_values(values).items() if n in spec.parameters}


def trial_setting(trial: Trial, spec: StudySpec) -> dict[str, HyperparameterValue]:
    return {n: v for n, v in spec.with_computed_values(dict(trial.params)).items() if n in spec.parameters}


def fixed_parameters(setting: dict[str, HyperparameterValue], spec: StudySpec) -> dict[str, Parameter]:
    """Return all hyperparameters of the setting. Those without a formula are fixed."""
    why = "as in the best trial so far"
    return {n: parameter_with_formula(n, setting, spec) or spec.fix_value(n, value, why=why) for n, value in setting.items()}


def parameter_with_formula(name: str, setting: dict[str, HyperparameterValue], spec: StudySpec) -> Parameter | None:
    """Return the hyperparameter, or None if it has no formula or its formula needs a hyperparameter that the setting lacks."""
    parameter = spec.parameters[name]
    if parameter.formula is None or not formula.parse_formula(parameter.formula).names <= setting.keys():
        return None
    return parameter.model_copy(update={"when": None})


def searched_instead(
    spec: StudySpec, name: str, low: float, high: float, kind: Literal["int", "float"], why: str
) -> SetRange | AddParameter:
    """Return the change that searches the hyperparameter in this range, on a log scale."""
    old = spec.parameters.get(name)
    if old is not None and old.searched:
        return SetRange(parameter=name, low=low, high=high, scale="log", why=why)
    parameter = Parameter(type=kind, low=low, high=high, scale="log", role="nuisance", when=old and old.when, why=why)
    return AddParameter(name=name, parameter=parameter)


def learning_rate(spec: StudySpec) -> str | None:
    """Return the name of the study's learning rate, if any. Of several learning rates, prefer a searched one."""
    names = [n for n in spec.parameters if is_learning_rate(n)]
    return next((n for n in names if spec.parameters[n].searched), names[0] if names else None)


def is_random_search(spec: StudySpec) -> bool:
    return bool(spec.searched) and spec.probe is None and not spec.settings and (spec.seeds or 1) == 1


def validate_spec(spec: StudySpec, valid_spec: StudySpec | None = None) -> StudySpec:
    """Validate a spec that `model_copy` made, because `model_copy` does not validate. Parameters that `valid_spec` contains are
    already valid. Raises ValidationError."""
    valid_parameters = valid_spec.parameters if valid_spec is not None else {}
    parameters = {n: p if valid_parameters.get(n) is p else p.model_dump() for n, p in spec.parameters.items()}
    return StudySpec.model_validate({**spec.model_dump(exclude={"parameters"}), "parameters": parameters})


def with_training_lengths(study: Study, spec: StudySpec) -> StudySpec:
    """Adapt fixed hyperparameters that set the training length, such as epochs (`Study.lengths`), to `max_train_steps`."""
    for name, steps_per_unit in study.lengths.items():
        old = spec.parameters.get(name)
        if old is None or old.role != "fixed" or not spec.max_train_steps:
            continue
        value = max(round(spec.max_train_steps / steps_per_unit), 1)
        why = f"the length of training: {spec.max_train_steps:,} steps, {steps_per_unit:.3g} per unit of {name}"
        spec = spec.with_parameter(name, old.model_copy(update={"value": value, "why": why}))
    return spec


def _next_study_notes(study: Study, parameters: Mapping[str, Parameter]) -> Iterator[str]:
    yield from recipe_notes(study.spec)
    objective, fixed_names = study.spec.objective, [n for n in study.searched if parameters[n].role == "fixed"]
    if objective.chosen_on_test_data:
        yield VALIDATION_DATA_ADVICE.format(metric=objective.metric)
    last_steps = [int(c.steps[-1]) for t in study.trials if t.status == "complete" and len(c := study.cost_curve(t)) > 1]
    declared_steps = study.spec.max_train_steps
    if last_steps and declared_steps and np.median(last_steps) >= MIN_LENGTH_MISMATCH_RATIO * declared_steps:
        yield LENGTH_MISMATCH_NOTE.format(ran=int(np.median(last_steps)), declared=declared_steps)
    length = _max_train_steps(study, parameters)
    if length and length != declared_steps:
        sizes = [f"{clean(n)} {setting(parameters[n].value)}" for n in fixed_names if parameter_kinds.is_batch_size(n)]
        yield SAME_EPOCHS_NOTE.format(size=sizes[0], length=length, whole=declared_steps)
    if any(parameter_kinds.is_batch_size(n) for n in fixed_names) and roles.lacks_throughput(study):
        yield roles.MEASURE_THROUGHPUT_ADVICE


def _max_train_steps(study: Study, parameters: Mapping[str, Parameter]) -> int | None:
    """Return the training length of the next study. If it fixes a batch size that the analysed study searched, return the
    length of the trials with this batch size, because larger batches need fewer steps per epoch."""
    length = study.spec.max_train_steps
    fixed_sizes = {n for n in study.searched if parameter_kinds.is_batch_size(n) and parameters[n].role == "fixed"}
    complete = [t for t in study.trials if t.status == "complete"]
    trials = [t for t in complete if all(t.params.get(n) == parameters[n].value for n in fixed_sizes)]
    last_steps = [int(c.steps[-1]) for t in trials if len(c := study.cost_curve(t)) > 1]
    if fixed_sizes and length and last_steps and max(last_steps) < MIN_FULL_LENGTH_RATIO * length:
        return int(np.median(last_steps))
    return length
