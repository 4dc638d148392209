"""Intervals of the best position hold, and one sweep without noise is exact."""

import numpy as np
import pytest

from advisor.stats.optimum import NUMBER_OF_DRAWS, estimate_optima

RATES = np.log(2.0) * np.arange(-10.0, -2.0)


def sweep(best, noise, rng, repeats=1):
    """A response that rises faster above the best position, as losses do."""
    x = np.repeat(RATES, repeats)
    far = 0.5 * (x - best) / np.log(2)
    return x, 1 + 0.4 * (np.exp(far) - 1 - far) + noise * rng.standard_normal(len(x))


def test_a_sweep_without_noise_is_found_between_its_positions():
    best = -6.3 * np.log(2)
    (found,) = estimate_optima([sweep(best, 0.0, np.random.default_rng(0))])
    assert found.positions.shape == found.costs.shape == (NUMBER_OF_DRAWS,)
    assert np.median(found.positions) == pytest.approx(best, abs=0.25 * np.log(2))
    assert np.median(found.costs) == pytest.approx(1.0, abs=0.02)


def test_intervals_hold_as_often_as_they_say():
    rng, held, tried = np.random.default_rng(1), np.zeros(2), 0
    for _ in range(30):
        bests = rng.uniform(-7.5, -5.5, 2) * np.log(2)
        for best, found in zip(bests, estimate_optima([sweep(b, 0.03, rng, repeats=2) for b in bests]), strict=True):
            ends = np.quantile(found.positions, [0.05, 0.95]), np.quantile(found.costs, [0.05, 0.95])
            held += [low <= true <= high for true, (low, high) in zip((best, 1.0), ends, strict=True)]
            tried += 1
    assert (held / tried > 0.8).all()


def test_more_noise_means_wider_intervals():
    rng = np.random.default_rng(2)
    quiet, loud = (estimate_optima([sweep(-4.0, noise, rng, repeats=3)])[0].positions.std() for noise in (0.005, 0.1))
    assert loud > 2 * quiet


def test_a_best_position_beyond_the_sweep_piles_up_at_its_end():
    (found,) = estimate_optima([sweep(-12 * np.log(2), 0.01, np.random.default_rng(3))])
    assert np.mean(found.positions == RATES[0]) > 0.5


def test_equal_costs_leave_the_best_position_open():
    (found,) = estimate_optima([(RATES, np.ones(len(RATES)))])
    assert np.isfinite(found.costs).all()
    assert found.positions.std() > np.log(2)
