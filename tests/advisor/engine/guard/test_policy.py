"""When both bounds rule a trial out."""

import numpy as np
import pytest

from advisor.engine.guard.policy import Policy, TrialProgress

STEPS = np.arange(1, 21) * 10


def progress(costs, length=200):
    costs = np.asarray(costs, float)
    return TrialProgress(STEPS[: len(costs)], costs, length)


def falling(end, rate=8.0):
    return progress(end + np.exp(-rate * STEPS / 200))


SIBLINGS = [falling(end) for end in (0.1, 0.2, 0.3, 0.4)]


def test_a_flat_trial_far_behind_is_ruled_out_with_its_figures():
    flat = progress([1.2] * 8)
    bounds = Policy().bounds_if_doomed(flat, 7, SIBLINGS)
    assert bounds is not None
    assert (bounds.step, bounds.best, bounds.incumbent, bounds.extrapolated_decrease) == (
        80,
        1.2,
        pytest.approx(0.1, abs=0.001),
        0.0,
    )
    assert 0 < bounds.largest_later_decrease < 0.1
    assert bounds.needed_gain == pytest.approx(1.1, abs=0.001)


def test_a_trial_that_still_falls_fast_is_not():
    assert Policy().bounds_if_doomed(progress(3 - 0.3 * np.arange(8)), 7, SIBLINGS) is None


def test_a_flat_trial_is_not_while_siblings_gained_as_much_later():
    """With a schedule that decays at the end, all trials gain late."""
    late = [progress([1.0] * 15 + [0.3] * 5) for _ in range(4)]
    assert Policy().bounds_if_doomed(progress([1.1] * 10), 9, late) is None
    assert Policy().bounds_if_doomed(progress([1.1] * 18), 17, late) is not None


def test_three_evaluations_in_a_row_must_agree():
    trial = progress([3.0, 2.0, *[1.2] * 10])
    once, thrice = (
        next(k for k in range(12) if Policy(successive_evaluations=count).bounds_if_doomed(trial, k, SIBLINGS))
        for count in (1, 3)
    )
    assert thrice == once + 2


def test_a_best_value_near_the_incumbent_keeps_a_trial_alive():
    assert Policy().bounds_if_doomed(progress([0.15] * 5 + [5.0] * 3), 7, SIBLINGS) is None


def test_three_siblings_are_too_few():
    assert Policy().bounds_if_doomed(progress([1.2] * 8), 7, SIBLINGS[:3]) is None


def test_the_fewer_siblings_the_larger_the_margin():
    """The trial needs 0.8, and every sibling gained 0.5 later."""
    late = [progress([0.8] * 19 + [0.3]) for _ in range(15)]
    trial = progress([1.1] * 18)
    assert Policy().bounds_if_doomed(trial, 17, late[:5]) is None
    assert Policy().bounds_if_doomed(trial, 17, late) is not None
    assert [Policy(exceedance=0.1).margin(count) for count in (4, 9, 99)] == [2, 1, 1]


def test_a_trial_ahead_of_half_of_its_siblings_is_not_ruled_out():
    """The best sibling was ahead of the trial, but most siblings were not: nobody knows how the trial goes on."""
    behind = [progress([2.0] * 20) for _ in range(4)]
    ahead = [falling(0.1 + i / 100) for i in range(4)]
    flat = progress([1.2] * 8)
    assert Policy().bounds_if_doomed(flat, 7, behind[:3] + ahead) is not None
    assert Policy().bounds_if_doomed(flat, 7, behind + ahead[:3]) is None


def test_the_best_trial_is_never_ruled_out():
    assert Policy().bounds_if_doomed(progress([0.05] * 8), 7, SIBLINGS) is None


def test_evaluations_are_counted_by_the_usual_sibling():
    assert Policy().has_enough_evaluations(SIBLINGS)
    assert not Policy().has_enough_evaluations([progress([1.0] * 5), progress([1.0] * 6), SIBLINGS[0]])


# --- the gains that a trial can still make ----------------------------------------------------------------------------------------

HUNDREDS = np.arange(1, 11) * 100


def gain(costs, length, at):
    return TrialProgress(HUNDREDS, np.asarray(costs, float), length).extrapolated_gain[at]


def test_the_best_so_far_skips_values_that_are_not_finite():
    trial = progress([np.nan, 3.0, np.inf, 2.0, 2.5])
    assert trial.best.tolist() == [np.inf, 3.0, 3.0, 2.0, 2.0]
    assert (trial.best_until(5), trial.best_until(25), trial.best_until(1000)) == (np.inf, 3.0, 2.0)


def test_a_level_is_the_median_of_three():
    assert progress([5.0, 1.0, 4.0, 9.0]).median_recent_costs.tolist() == [5.0, 5.0, 4.0, 4.0]


def test_a_straight_fall_goes_on_to_the_end():
    assert gain(10 - HUNDREDS / 100, 2000, 9) == pytest.approx(10.0)
    assert gain(10 - HUNDREDS / 100, 1000, 9) == 0.0
    assert gain(np.ones(10), 2000, 1) == np.inf


def test_a_plateau_gains_nothing_even_if_the_start_was_steep():
    costs = [9.0, 5.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert gain(costs, 2000, 9) == 0.0
    assert gain(costs, 2000, 3) > 1.0


def test_the_pace_counts_although_the_first_value_was_the_best():
    """A training that begins at chance, gets worse and then improves steadily: its best value so far does not move."""
    assert gain([0.7, 2.7, 1.5, 1.3, 1.2, 1.1, 1.0, 0.95, 0.9, 0.85], 2000, 9) > 0.4


def later_gain(best, *siblings):
    """Return the largest gain of the siblings after the second step, for a trial whose best cost is `best`."""
    bounds = Policy(siblings=1, successive_evaluations=1, exceedance=1e9).bounds_if_doomed(
        progress([best] * 3), 2, [progress([costs[0], costs[1], costs[1], *[costs[-1]] * 17]) for costs in siblings]
    )
    return bounds and bounds.largest_later_decrease


def test_the_later_gain_is_the_largest_of_the_siblings():
    assert later_gain(5.0, (3, 2, 1.5), (4, 3, 1.0)) == pytest.approx(2.0)


def test_a_worse_sibling_counts_only_below_the_trial():
    """It fell from 100 to 4, but a trial at 5 is already there."""
    assert later_gain(5.0, (1000, 100, 4.0), (3, 3, 2.5), (3, 3, 2.5)) == pytest.approx(1.0)


def test_a_sibling_without_a_value_by_then_excludes_nothing():
    assert later_gain(5.0, (np.inf, np.inf, 1.0), (3, 2, 1)) is None


def test_a_slope_between_costs_that_are_not_finite_is_unknown() -> None:
    trial = TrialProgress(np.arange(1, 6), np.array([np.inf, np.nan, np.inf, np.inf, 1.0]), length=5.0)
    assert trial.extrapolated_gain.tolist() == [np.inf, np.inf, np.inf, np.inf, 0.0]
