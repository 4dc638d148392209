"""Ranks of costs, and the strength of each hyperparameter alone."""

import numpy as np
from scipy import stats

from advisor.stats import ranks


def test_even_choice_of_trials_covers_all_ranks() -> None:
    costs = np.arange(1000.0)[::-1]
    kept = ranks.choose_evenly_by_rank(costs, 100)
    assert len(np.unique(kept)) == 100
    assert costs[kept].min() == 0
    assert costs[kept].max() == 999
    assert len(ranks.choose_evenly_by_rank(np.arange(7.0))) == 7


def test_effects_come_before_noise() -> None:
    rng = np.random.default_rng(0)
    numbers = [rng.random(100) for _ in range(30)]
    choices = [rng.integers(4, size=100) / 3 for _ in range(30)]
    costs = numbers[3] + 2 * (numbers[7] - 0.5) ** 2 + 0.5 * (choices[5] == 1 / 3) + 0.1 * rng.standard_normal(100)
    order = np.argsort(ranks.log_p_values_of_axes(numbers, choices, costs))
    assert set(order[:3].tolist()) == {3, 7, 35}


def test_a_threshold_beyond_which_trials_fail_is_an_effect() -> None:
    rng = np.random.default_rng(1)
    numbers = [rng.random(60) for _ in range(50)]
    costs = np.where(numbers[20] > 0.8, np.nan, rng.random(60))
    assert int(np.argmin(ranks.log_p_values_of_axes(numbers, [], costs))) == 20


def test_p_values_of_noise_are_uniform() -> None:
    rng = np.random.default_rng(2)
    numbers = [rng.random(50) for _ in range(400)]
    choices = [rng.integers(5, size=50) / 4 for _ in range(400)]
    logs = ranks.log_p_values_of_axes(numbers, choices, rng.random(50))
    assert stats.kstest(np.exp(logs), "uniform").pvalue > 0.001


def test_axes_that_tell_nothing() -> None:
    costs = np.arange(6.0)
    logs = ranks.log_p_values_of_axes([np.full(6, 0.5), np.full(6, np.nan)], [np.arange(6) / 5], costs)
    assert logs.tolist() == [0, 0, 0]
    assert ranks.log_p_values_of_axes([np.arange(6.0)], [], np.full(6, np.nan)).tolist() == [0]


def test_results_that_fall_with_the_position_are_told_from_noise() -> None:
    x = np.linspace(0, 1, 12)
    assert ranks.p_value_of_fall(x, -x) < 0.001
    assert ranks.p_value_of_fall(x, x) > 0.999
    assert ranks.p_value_of_fall(x, np.ones(12)) == ranks.p_value_of_fall(x[:2], -x[:2]) == 1.0


def test_an_infinite_position_is_a_missing_one() -> None:
    missing, infinite = np.linspace(0, 1, 12), np.linspace(0, 1, 12)
    missing[3], infinite[3] = np.nan, np.inf
    p_values = [ranks.log_p_values_of_axes([u], [], np.linspace(0, 1, 12) ** 2) for u in (missing, infinite)]
    np.testing.assert_array_equal(*p_values)
