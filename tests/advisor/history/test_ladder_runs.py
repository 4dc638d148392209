"""Further runs: new seeds around the best rate of every size, or rates beyond an open end."""

import numpy as np
import pytest

from advisor.history.ladder_runs import N_NEW_SEEDS, N_REPEATED_RATES, propose_further_runs

SIZES = (1e6, 4e6, 16e6)
LOG_RATES = np.log(2.0) * np.arange(-10.0, -2.0)


def runs(best=-6.0, ends=(None, None, None), log_rates=LOG_RATES):
    point = log_rates, (log_rates - best * np.log(2)) ** 2
    return propose_further_runs(SIZES, [point] * 3, ends)


def test_every_size_gets_the_best_rate_and_its_neighbours():
    found = runs()
    assert [r.size for r in found] == list(SIZES)
    assert {r.seeds for r in found} == {N_NEW_SEEDS}
    assert found[0].rates == pytest.approx([2.0**k for k in range(-8, -3)], rel=0.01)


@pytest.mark.parametrize(("best", "first"), [(-10.0, -10), (-3.0, -7)])
def test_neighbours_lie_on_one_side_if_the_best_rate_is_at_an_end(best, first):
    assert runs(best)[0].rates == pytest.approx([2.0**k for k in range(first, first + N_REPEATED_RATES)], rel=0.01)


def test_a_sweep_of_four_rates_is_repeated_as_a_whole():
    assert len(runs(log_rates=LOG_RATES[:4])[0].rates) == 4


def test_open_ends_ask_for_two_rates_beyond():
    low, high = runs(ends=("low", None, "high"))
    assert (low.size, low.rates) == (1e6, pytest.approx((2.0**-11, 2.0**-12), rel=0.01))
    assert (high.size, high.rates) == (16e6, pytest.approx((2.0**-2, 2.0**-1), rel=0.01))
