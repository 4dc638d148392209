"""Pairs the objective on a sample of the validation set with the objective on the whole set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor import contract
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial


@dataclass(frozen=True, slots=True)
class CostPairs:
    """Costs of one trial on the sample and on the whole validation set, paired by evaluation, shape (n,) each."""

    trial: Trial
    sample_costs: FloatArray
    whole_set_costs: FloatArray

    @property
    def excess_on_sample(self) -> FloatArray:
        """Cost on the sample minus cost on the whole set, shape (n,)."""
        return self.sample_costs - self.whole_set_costs


def read_cost_pairs(study: Study) -> list[CostPairs]:
    """Return the pairs of costs of the feasible trials, sorted by the best cost on the sample, lowest first. Raises MissingData
    if no trial has both values. Raises MissingData if no trial has both values.

    An evaluation on the whole set is paired with the last evaluation on the sample at or before its step.
    """
    metric = study.spec.objective.metric.removesuffix(contract.FULL_SET_SUFFIX)
    full = metric + contract.FULL_SET_SUFFIX
    if metric not in study.metrics or full not in study.metrics:
        raise MissingData(
            f"{full} is missing; if {metric} is computed on a sample of the validation set, log its value on the whole set under "
            "that name, once or at some of the steps",
            needs="design",
        )
    sign = 1.0 if study.minimize else -1.0
    paired = []
    for trial in study.ranked():
        sampled, whole = study.metrics[metric].curve(trial.index).finite, study.metrics[full].curve(trial.index).finite
        at = np.searchsorted(sampled.steps, whole.steps, side="right") - 1
        if (at >= 0).any():
            paired.append(CostPairs(trial, sign * sampled.values[at[at >= 0]], sign * whole.values[at >= 0]))
    if not paired:
        raise MissingData(f"no trial has both {metric} and {full}")
    return sorted(paired, key=lambda p: (float(p.sample_costs.min()), p.trial.index))
