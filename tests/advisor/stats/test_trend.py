"""How curves end: trend, forecast, plateau, best step."""

import numpy as np
import pytest
from scipy.signal import lfilter

from advisor.stats import trend

N = 60
STEPS = np.arange(1, N + 1) * 100
T = STEPS / STEPS[-1]


def noisy(costs, size, seed=0):
    return costs + np.random.default_rng(seed).normal(0, size, len(costs))


def ending(costs, steps=STEPS):
    end = trend.read_curve_end(steps, np.asarray(costs, float))
    assert end is not None
    return end


def plateau(costs, tolerance=0.005, margin=1.25):
    found = trend.read_plateau(STEPS, np.asarray(costs, float), tolerance=tolerance, margin=margin)
    assert found is not None
    return found


def test_a_straight_fall_gains_the_window_share_and_does_not_slow():
    end = ending(noisy(1 - T, 0.002))
    assert end.gain == pytest.approx(0.2, abs=0.01)
    assert end.gain_ratio == pytest.approx(1, abs=0.05)
    assert end.is_improving(0.01, 0.05)
    assert end.recommended_length_factor == pytest.approx(3.0, abs=0.6)


def test_the_forecast_of_an_exponential_is_what_it_has_left():
    rate = 3.0
    end = ending(noisy(np.exp(-rate * T), 1e-5))
    left = (np.exp(-rate) - np.exp(-2 * rate)) / (np.exp(-rate * T[0]) - np.exp(-rate))
    assert end.forecast_gain == pytest.approx(left, rel=0.15)
    low, high = end.forecast_interval()
    assert low < end.forecast_gain < high


def test_the_forecast_of_a_power_law_is_at_most_logarithmic():
    costs = (STEPS / 100.0) ** -0.3
    end = ending(noisy(costs, 1e-5))
    left = costs[-1] * (1 - 2**-0.3) / (costs[0] - costs[-1])
    assert 0.5 * left < end.forecast_gain < 1.5 * left


@pytest.mark.parametrize("rise", [0, 0.3])
def test_flat_and_rising_curves_do_not_improve(rise):
    assert not ending(noisy(np.exp(-T / 0.03) + rise * T, 0.01, 1)).is_improving(0.01, 0.05)


def test_a_smooth_fall_that_begins_late_and_sharply_still_improves():
    late = noisy(1 + 0.01 * np.exp(-T) - 0.4 * np.maximum(T - 0.75, 0) ** 0.5, 0.0005)
    start = np.concatenate([[3.0], late[1:]])
    assert ending(start).is_improving(0.01, 0.05)


def test_autocorrelated_noise_widens_the_error():
    white, shocks = np.random.default_rng(3).normal(0, 0.01, (2, N))
    wander = lfilter([0.6], [1, -0.8], shocks)
    assert ending(np.exp(-T / 0.05) + wander).error > 1.5 * ending(np.exp(-T / 0.05) + white).error


def test_shares_do_not_depend_on_the_unit_of_cost_or_of_steps():
    costs = noisy(0.5 + np.exp(-3 * T), 0.01)
    one, other = ending(costs), ending(1e6 * costs, STEPS * 7)
    assert one.gain == pytest.approx(other.gain)
    assert one.p_value == pytest.approx(other.p_value)


def test_a_tenfold_fall_is_read_in_logarithms():
    relative = np.exp(-0.5 * T)
    costs = np.concatenate([[1e6], relative[1:]])
    assert ending(costs).gain > 0.001
    assert ending(costs - 2e6).gain < 1e-6


def test_the_plateau_is_found_where_the_curve_settles():
    found = plateau(noisy(np.where(T < 0.4, 1 - T / 0.4, 0.0), 0.001))
    assert found.settled_share == pytest.approx(0.4, abs=0.04)
    assert found.is_flat(0.05)


RISES_AGAIN = np.maximum(1 - T / 0.2, 0) + 0.2 * np.maximum(T - 0.4, 0)


@pytest.mark.parametrize(("costs", "noise"), [(1 - T, 0.001), (RISES_AGAIN, 0.005), (np.exp(-T / 0.05), 0.12)])
def test_falling_rising_and_noisy_ends_are_not_called_flat(costs, noise):
    assert not plateau(noisy(costs, noise)).is_flat(0.05)


@pytest.mark.parametrize(
    "costs", [[], [1.0], [1, 2], [1.0] * 60, [0.0] * 60, np.random.default_rng(0).normal(size=60), np.arange(60.0), [1.0] * 7]
)
def test_short_flat_and_unlearned_curves_say_nothing(costs):
    costs = np.asarray(costs, float)
    assert trend.read_curve_end(STEPS[: len(costs)], costs) is None
    assert trend.read_plateau(STEPS[: len(costs)], costs, tolerance=0.01, margin=1.25) is None


def test_extreme_values_do_not_overflow():
    with np.errstate(all="raise"):
        huge = 1.7e308 * (1 - 2 * T)
        trend.read_curve_end(STEPS, huge)
        trend.read_plateau(STEPS, np.concatenate([[1e308], np.linspace(1, 0, N - 1)]), tolerance=0.01, margin=1.25)
        trend.best_step_position(STEPS, huge, total=STEPS[-1])


def test_dense_curves_are_thinned_without_losing_their_end():
    steps = np.arange(1, 5001)
    assert ending(noisy(1 - steps / 5000, 0.01), steps).gain == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    ("costs", "left"), [([2, 1, 0.1], 0.05), ([-0.1, -0.5, -0.91], 0.1), ([0, -12, -30], np.nan), ([1], np.nan)]
)
def test_left_to_floor_knows_losses_and_accuracies(costs, left):
    assert trend.distance_from_perfect_score(np.array(costs, float)) == pytest.approx(left, nan_ok=True)


def test_left_to_floor_does_not_measure_by_a_blown_up_start():
    assert trend.distance_from_perfect_score(np.array([15.2, *[0.26] * 9, *[0.13] * 90])) == pytest.approx(0.5)


def test_the_best_step_and_its_ties():
    costs = np.maximum(0.5 - T, 0) + np.random.default_rng(0).uniform(0, 0.01, N)
    costs[50] = -0.001
    at, tied = trend.best_step_position(STEPS, costs, total=float(STEPS[-1]))
    assert at == pytest.approx(T[50])
    assert tied == pytest.approx(0.5, abs=0.05)
    assert trend.best_step_position(np.array([0]), np.array([1.0]), total=1.0) == (0.0, 0.0)
