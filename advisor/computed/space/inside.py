"""Selects the trials whose settings lie in a search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advisor.model.space import BoolArray, HyperparameterValue, equal_values
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Trial


def trials_in_space(spec: StudySpec, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose settings lie in the search space and match its fixed values; a missing parameter counts as a
    match."""
    params = [spec.with_computed_values(trial.params) for trial in trials]
    is_inside = np.ones(len(trials), dtype=np.bool_)
    for name, parameter in spec.parameters.items():
        if parameter.role != "derived":
            with_value = [
                i for i, p in enumerate(params) if name in p and (not parameter.when or meets_condition(parameter, p))
            ]
            is_inside[with_value] &= _are_allowed(parameter, [params[i][name] for i in with_value])
    return [
        t
        for t, p, in_ranges in zip(trials, params, is_inside, strict=True)
        if in_ranges and spec.forbidden_region_of(p) is None
    ]


def meets_condition(parameter: Parameter, params: Mapping[str, HyperparameterValue]) -> bool:
    """Return True if the trial meets the condition (values of other hyperparameters) under which the parameter exists."""
    return all(k in params and equal_values(params[k], v) for k, v in (parameter.when or {}).items())


def _are_allowed(parameter: Parameter, values: Sequence[HyperparameterValue]) -> BoolArray:
    """Return a mask, shape (n,), of the logged values that the study allows for the parameter."""
    if parameter.role != "fixed":
        return parameter.allows_each(values)
    fixed = parameter.value
    return np.array([fixed is None or equal_values(value, fixed) for value in values], dtype=np.bool_)
