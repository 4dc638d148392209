"""The cheapest runs: at small sizes if they help as much, more if noise is larger, none if none are affordable."""

import numpy as np
import pytest

from advisor.history.ladder_runs import BLOCK, MAX_BLOCKS, cheapest_runs

SIZES = np.array([1e6, 4e6, 16e6])
LOG_RATES = np.log(2.0) * np.arange(-10.0, -2.0)
SAME = np.log(2)


def runs(variances, shift=0.0, ends=(None, None, None), costs=SIZES):
    point = LOG_RATES, (LOG_RATES + 4) ** 2
    return cheapest_runs(SIZES, costs, np.array(variances), [point] * 3, ends, shift, SAME)


def test_small_sizes_come_first_and_get_neighbours_of_the_best_rate():
    found = runs([0.12, 0.02, 0.02])
    assert found[0].size == 1e6
    assert found[0].rates == pytest.approx((2.0**-7, 2.0**-6, 2.0**-5), rel=0.01)
    assert sum(r.seeds for r in found) <= MAX_BLOCKS


def test_the_noisiest_size_is_repeated_if_runs_cost_the_same():
    found = runs([0.02, 0.02, 0.12], costs=np.ones(3))
    assert max(found, key=lambda r: r.seeds).size == 16e6


def test_more_noise_takes_more_runs_and_too_much_takes_too_many():
    few, more = (sum(r.seeds for r in runs([v] * 3)) for v in (0.05, 0.08))
    assert BLOCK * few < BLOCK * more
    assert runs([5.0] * 3) == ()


def test_a_clear_shift_takes_fewer_runs():
    assert sum(r.seeds for r in runs([0.05] * 3, shift=-1.2)) < sum(r.seeds for r in runs([0.05] * 3, shift=0.6))


def test_a_known_shift_still_names_one_block():
    assert [r.seeds for r in runs([1e-6] * 3)] == [1]


def test_open_ends_ask_for_two_rates_beyond():
    low, high = runs([0.1] * 3, ends=("low", None, "high"))
    assert (low.size, low.rates) == (1e6, pytest.approx((2.0**-11, 2.0**-12), rel=0.01))
    assert (high.size, high.rates) == (16e6, pytest.approx((2.0**-2, 2.0**-1), rel=0.01))
