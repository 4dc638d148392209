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
    assert best_of.chance_of_better_trial(costs, n, 2.5) == pytest.approx(share)


def test_nothing_drawn_or_nothing_better_is_no_chance() -> None:
    assert best_of.chance_of_better_trial(np.arange(5.0), 0, 9.0) == 0
    assert best_of.chance_of_better_trial(np.arange(5.0), 3, 0.0) == 0


def test_quantiles_of_the_best_are_those_of_endless_resampling() -> None:
    rng = np.random.default_rng(1)
    costs = np.append(rng.exponential(size=30), np.nan)
    levels = np.array([0.05, 0.5, 0.95])
    drawn = np.where(np.isnan(costs), np.inf, costs)[rng.integers(31, size=(200_000, 4))].min(axis=1)
    share = [np.mean(drawn <= q) for q in best_of.quantiles_of_best(costs, 4, levels)]
    below = [np.mean(drawn < q) for q in best_of.quantiles_of_best(costs, 4, levels)]
    assert all(b <= level + 0.005 and level - 0.005 <= s for b, s, level in zip(below, share, levels, strict=True))


def test_p_of_late_group_bounds_that_of_all_orders() -> None:
    """It is exact if at most one part can be late."""
    owner, sizes, ranks = [0, 0, 0, 1, 1, 2, 2, 2, 2], [3, 2, 4], [2, 1, 1]
    for k in range(10):
        draws = [[owner[i] for i in chosen] for chosen in combinations(range(9), k)]
        late = [[draw.count(part) < rank for part, rank in enumerate(ranks)] for draw in draws]
        exact, p = np.mean([any(parts) for parts in late]), best_of.p_value_of_late_group(sizes, ranks, k)
        assert exact <= p + 1e-9
        if max(map(sum, late)) < 2:
            assert p == pytest.approx(exact)


def test_an_empty_part_is_called_significant_no_more_often_than_stated() -> None:
    rng = np.random.default_rng(0)
    ones = [best_of.p_value_of_late_group([8] * 5, [1] * 5, k) for k in range(41)]
    p = []
    for _ in range(400):
        owner = rng.permutation(np.repeat(np.arange(5), 8))
        worst = max(int(np.argmax(owner == i)) for i in range(5))
        p.append(ones[worst])
    assert np.mean(np.array(p) <= 0.05) <= 0.08
