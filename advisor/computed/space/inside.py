"""The trials that lie in a search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from advisor.model.space import BoolArray, Value, same
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Trial


def trials_inside(spec: StudySpec, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose settings lie in the search space, fixed values included; missing parameters are ignored."""
    params = [spec.completed(trial.params) for trial in trials]
    fits = np.ones(len(trials), dtype=np.bool_)
    for name, parameter in spec.parameters.items():
        if parameter.role != "derived":
            having = [i for i, p in enumerate(params) if name in p and (not parameter.when or exists(parameter, p))]
            fits[having] &= _allows_each(parameter, [params[i][name] for i in having])
    return [t for t, p, fine in zip(trials, params, fits, strict=True) if fine and spec.forbids(p) is None]


def exists(parameter: Parameter, params: Mapping[str, Value]) -> bool:
    """Return whether a trial with these values meets the parameter's condition."""
    return all(k in params and same(params[k], v) for k, v in (parameter.when or {}).items())


def _allows_each(parameter: Parameter, values: Sequence[Value]) -> BoolArray:
    """Return for each of the logged values (n,) whether the parameter can have it in the study."""
    if parameter.role != "fixed":
        return parameter.allows_each(values)
    fixed = parameter.value
    return np.array([fixed is None or same(value, fixed) for value in values], dtype=np.bool_)
