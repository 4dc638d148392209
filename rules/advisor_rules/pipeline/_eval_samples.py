"""The objective on a sample of the validation set beside its value on the whole set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor import contract
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial


@dataclass(frozen=True, slots=True)
class Pairs:
    """Costs of one trial on the sample and on the whole set, both of shape (n,), at the same evaluations."""

    trial: Trial
    sampled: FloatArray
    whole: FloatArray

    @property
    def excess(self) -> FloatArray:
        """By how much the cost on the sample is higher, shape (n,)."""
        return self.sampled - self.whole


def pairs(study: Study) -> list[Pairs]:
    """The pairs of the trials that did not fail, best on the sample first; raises MissingData where none has both.

    An evaluation on the whole set is paired with that on the sample at the same step, or the last one before.
    """
    metric = study.spec.objective.metric.removesuffix(contract.FULL_SUFFIX)
    full = metric + contract.FULL_SUFFIX
    if metric not in study.metrics or full not in study.metrics:
        raise MissingData(
            f"nothing was logged as {full}: where {metric} is of a sample of the validation set, log it on the whole set under "
            "that name, once or at some of the steps"
        )
    sign = 1.0 if study.minimize else -1.0
    found = []
    for trial in study.ranked():
        sampled, whole = study.metrics[metric].curve(trial.index).finite, study.metrics[full].curve(trial.index).finite
        at = np.searchsorted(sampled.steps, whole.steps, side="right") - 1
        if (at >= 0).any():
            found.append(Pairs(trial, sign * sampled.values[at[at >= 0]], sign * whole.values[at >= 0]))
    if not found:
        raise MissingData(f"no trial has both {metric} and {full}")
    return sorted(found, key=lambda p: (float(p.sampled.min()), p.trial.index))
