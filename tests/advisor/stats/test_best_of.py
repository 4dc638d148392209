"""The best of n trials."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from advisor.stats import best_of


@pytest.mark.parametrize("n", [1, 2, 4, 6, 9])
def test_the_chance_of_better_counts_all_draws(n: int) -> None:
    costs = np.array([3.0, 1.0, np.nan, 2.0, 5.0, 4.0])
    draws = list(combinations(costs, min(n, 6)))
    share = np.mean([any(c < 2.5 for c in draw) for draw in draws])
    assert best_of.chance_of_better(costs, n, 2.5) == pytest.approx(share)


def test_nothing_drawn_or_nothing_better_is_no_chance() -> None:
    assert best_of.chance_of_better(np.arange(5.0), 0, 9.0) == 0
    assert best_of.chance_of_better(np.arange(5.0), 3, 0.0) == 0
