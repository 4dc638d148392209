"""The expected best of n trials, and the loss of half of the trials."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from advisor_rules.space import _halving


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_the_expected_best_counts_all_draws(n: int) -> None:
    costs = np.array([3.0, 1.0, np.nan, 2.0, 5.0, 4.0])
    known = np.where(np.isnan(costs), 5.0, costs)
    assert _halving.expected_best(costs, n) == pytest.approx(np.mean([min(d) for d in combinations(known, n)]))


def test_halving_loses_what_the_best_of_halves_is_behind() -> None:
    costs = np.random.default_rng(0).random(10)
    halves = _halving.loss_of_halving(costs)
    assert halves.expected_loss == pytest.approx(_halving.expected_best(costs, 5) - costs.min())
    low, high = halves.interval(0.9)
    assert low < halves.expected_loss < high
    assert halves.chance_above(low) == pytest.approx(0.9)
    assert halves.chance_above(0.0) == 1


def test_halving_says_how_well_it_knows() -> None:
    rng = np.random.default_rng(0)
    for shape in (1.0, 0.4):
        many = [_halving.loss_of_halving(rng.random(12) ** shape) for _ in range(400)]
        mean = float(np.mean([h.expected_loss for h in many]))
        assert np.mean([h.chance_above(mean) > 0.9 for h in many]) < 0.15


@pytest.mark.parametrize("costs", [[1.0, 1.0, 1.0, 1.0], [0.0, 1e300, -1e300, 5.0, np.nan], [0.0, 0.0, 1.0, 2.0]])
def test_halving_of_odd_costs(costs: list[float]) -> None:
    halves = _halving.loss_of_halving(np.array(costs))
    assert np.isfinite(halves.expected_loss)
    assert 0 <= halves.chance_above(1e-3) <= 1
