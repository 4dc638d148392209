"""Ranks of costs."""

import numpy as np

from advisor.stats import ranks


def test_even_choice_of_trials_covers_all_ranks() -> None:
    costs = np.arange(1000.0)[::-1]
    kept = ranks.choose_evenly_by_rank(costs, 100)
    assert len(np.unique(kept)) == 100
    assert costs[kept].min() == 0
    assert costs[kept].max() == 999
    assert len(ranks.choose_evenly_by_rank(np.arange(7.0))) == 7
