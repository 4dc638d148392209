"""Gains that a running cost curve can still make."""

import numpy as np
import pytest

from advisor.stats import reach

STEPS = np.arange(1, 11) * 100


def test_the_best_so_far_skips_values_that_are_not_finite():
    best = reach.best_so_far(np.array([np.nan, 3.0, np.inf, 2.0, 2.5]))
    assert best.tolist() == [np.inf, 3.0, 3.0, 2.0, 2.0]


def test_a_level_is_the_median_of_three():
    assert reach.running_medians(np.array([5.0, 1.0, 4.0, 9.0])).tolist() == [5.0, 5.0, 4.0, 4.0]


def test_a_straight_fall_goes_on_to_the_end():
    costs = 10 - STEPS / 100
    assert reach.extrapolated_gain(STEPS, reach.running_medians(costs), 2000, 9) == pytest.approx(10.0)
    assert reach.extrapolated_gain(STEPS, reach.running_medians(costs), 1000, 9) == 0.0


def test_a_plateau_gains_nothing_even_if_the_start_was_steep():
    costs = np.array([9.0, 5.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert reach.extrapolated_gain(STEPS, reach.running_medians(costs), 2000, 9) == 0.0
    assert reach.extrapolated_gain(STEPS, reach.running_medians(costs), 2000, 3) > 1.0


def test_the_pace_counts_although_the_first_value_was_the_best():
    """A training that begins at chance, gets worse and then improves steadily: its best value so far does not move."""
    costs = np.array([0.7, 2.7, 1.5, 1.3, 1.2, 1.1, 1.0, 0.95, 0.9, 0.85])
    assert reach.extrapolated_gain(STEPS, reach.running_medians(costs), 2000, 9) > 0.4


def test_nothing_is_known_before_three_values():
    assert reach.extrapolated_gain(STEPS, reach.running_medians(np.ones(10)), 2000, 1) == np.inf


def later_gain(step, best, *curves):
    pairs = [(STEPS[: len(costs)], reach.best_so_far(np.array(costs))) for costs in curves]
    return reach.largest_later_gain(best, reach.lowest_costs_until(step, pairs), np.array([costs[-1] for _, costs in pairs]))


def test_the_later_gain_is_the_largest_of_the_siblings():
    assert later_gain(200, 5.0, (3, 2, 1.5), (4, 3, 1.0)) == pytest.approx(2.0)


def test_a_worse_sibling_counts_only_below_the_trial():
    """It fell from 100 to 4, but a trial at 5 is already there."""
    assert later_gain(200, 5.0, (1000, 100, 4.0)) == pytest.approx(1.0)
    assert later_gain(200, 5.0, (1000, 100, 6.0)) == 0.0


def test_a_sibling_without_a_value_by_then_excludes_nothing():
    assert later_gain(50, 5.0, (3, 2, 1)) == np.inf
