"""Trends over size: intervals grow with the distance and hold for power laws."""

import numpy as np
import pytest

from advisor.stats.extrapolation import NUMBER_OF_DRAWS, cost_trend, learning_rate_trend

SIZES = np.log([1e6, 4e6, 16e6])


def ends(draws):
    return np.quantile(draws, [0.05, 0.95])


def test_a_straight_line_goes_on():
    rates = np.log(0.01) - 0.5 * (SIZES - SIZES[0])
    trend = learning_rate_trend(SIZES, rates, np.full(3, 0.01), np.log(64e6))
    assert trend.values_at_known_sizes.shape == (NUMBER_OF_DRAWS, 3)
    low, high = ends(trend.values_at_new_size)
    assert low < np.log(0.01) - 0.5 * np.log(64) < high
    assert np.median(trend.values_at_known_sizes[:, -1] - trend.values_at_known_sizes[:, 0]) == pytest.approx(
        -0.5 * np.log(16), abs=0.15
    )


def test_intervals_grow_with_the_distance_and_shrink_with_sizes():
    rates = np.log(0.01) - 0.3 * (SIZES - SIZES[0])
    near, far = (
        np.ptp(ends(learning_rate_trend(SIZES, rates, np.full(3, 0.01), SIZES[-1] + d).values_at_new_size)) for d in (1.0, 4.0)
    )
    two = np.ptp(ends(learning_rate_trend(SIZES[:2], rates[:2], np.full(2, 0.01), SIZES[-1] + 1.0).values_at_new_size))
    assert near < far
    assert near < two


def test_power_laws_are_within_the_interval_of_their_cost():
    rng, held = np.random.default_rng(0), []
    for _ in range(40):
        exponent, floor = rng.uniform(0.05, 0.6), rng.uniform(0.0, 2.0)
        costs = floor + np.exp(-exponent * (SIZES - SIZES[0]))
        known = costs + 0.01 * rng.standard_normal(3)
        low, high = ends(cost_trend(SIZES, known, np.full(3, 1e-4), np.log(64e6)).values_at_new_size)
        held.append(low <= floor + np.exp(-exponent * np.log(64)) <= high)
    assert np.mean(held) >= 0.9


def test_equal_costs_do_not_fail():
    trend = cost_trend(SIZES, np.ones(3), np.zeros(3), np.log(64e6))
    assert np.median(trend.values_at_new_size) == pytest.approx(1.0)
