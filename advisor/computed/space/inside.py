"""Selects the trials whose settings lie in a search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advisor.model.space import HyperparameterValue, equal_values
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Trial


def trials_in_space(spec: StudySpec, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials in the search space that have its fixed values. Parameters that a trial did not log are ignored."""
    params = [spec.with_computed_values(trial.params) for trial in trials]
    is_inside = np.ones(len(trials), dtype=np.bool_)
    for name, parameter in spec.parameters.items():
        indices = [i for i, p in enumerate(params) if name in p and meets_condition(parameter, p)]
        values, fixed = [params[i][name] for i in indices], parameter.value
        if parameter.role == "fixed":
            is_inside[indices] &= np.array([fixed is None or equal_values(v, fixed) for v in values], dtype=np.bool_)
        elif parameter.role != "derived":
            is_inside[indices] &= parameter.allows_each(values)
    return [t for i, t in enumerate(trials) if is_inside[i] and spec.forbidden_region_of(params[i]) is None]


def meets_condition(parameter: Parameter, params: Mapping[str, HyperparameterValue]) -> bool:
    """Return True if the setting `params` uses the parameter: some parameters apply only for certain values of other parameters."""
    return all(k in params and equal_values(params[k], v) for k, v in (parameter.when or {}).items())
