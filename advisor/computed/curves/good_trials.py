"""Selects the good trials of a study: those near the best one."""

from __future__ import annotations

import numpy as np

from advisor.model.finding import MissingData
from advisor.model.space import MAX_FINITE_VALUE, FloatArray
from advisor.model.study import Study, Trial


def good_trials(study: Study, reach: float) -> list[Trial]:
    """Return the feasible trials whose results are within `reach` of the best result, best trial first. Raises MissingData if
    no trial has a finite result.

    reach: maximum distance from the best result, as a share of the best trial's gain over its run.
    """
    best_first = study.ranked()
    if not best_first:
        raise MissingData("no trial ended with a finite objective", needs="trials", at_least=1)
    first_cost = float(study.cost_curve(best_first[0]).finite.values[0])
    return best_first[: count_trials_near_best(study.costs[[t.index for t in best_first]], first_cost, reach=reach)]


def count_trials_near_best(best: FloatArray, first: float, *, reach: float) -> int:
    """Return the number of trials whose cost exceeds the lowest cost by at most `reach` times the best trial's gain. best:
    costs, shape (n,), ascending.

    first: the best trial's cost at its first evaluation. If the best trial gained nothing over its run, all trials count.
    """
    if len(best) == 0:
        return 0
    costs = np.clip(best, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    gain = float(np.clip(first, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)) - float(costs[0])
    return int(np.sum(costs - costs[0] <= reach * gain)) if gain > 0 else len(costs)
