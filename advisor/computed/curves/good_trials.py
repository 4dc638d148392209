"""Selects the good trials of a study, whose results are near the best one."""

from __future__ import annotations

import numpy as np

from advisor.model.finding import MissingData
from advisor.model.space import MAX_FINITE_VALUE
from advisor.model.study import Study, Trial


def good_trials(study: Study, reach: float) -> list[Trial]:
    """Return the feasible trials whose distance from the best result is at most `reach` times the best trial's improvement during
    training, best trial first; all trials if the best trial did not improve. Raises MissingData if no result is finite."""
    best_first = study.ranked()
    if not best_first:
        raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
    first_cost = study.cost_curve(best_first[0]).finite.values[0]
    costs = np.clip([first_cost, *study.costs[[t.index for t in best_first]]], -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    best_trial_gain = costs[0] - costs[1]
    return best_first[: int(np.sum(costs[1:] - costs[1] <= reach * best_trial_gain))] if best_trial_gain > 0 else best_first
