"""The trials that lie in a search space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.model.spec import StudySpec
from advisor.model.study import Trial


def trials_inside(spec: StudySpec, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose settings lie in the search space; missing parameters are ignored."""
    params = [spec.completed(trial.params) for trial in trials]
    fits = np.ones(len(trials), dtype=np.bool_)
    for name, parameter in spec.searched.items():
        having = [i for i, p in enumerate(params) if name in p]
        fits[having] &= parameter.allows_each([params[i][name] for i in having])
    return [t for t, p, fine in zip(trials, params, fits, strict=True) if fine and spec.forbids(p) is None]
