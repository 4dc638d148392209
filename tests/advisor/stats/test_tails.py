"""Tails of noisy series, and outliers of gradient norms."""

import numpy as np
import pytest

from advisor.stats import tails

RNG = np.random.default_rng(7)


def test_the_tail_of_exponential_values_is_exact():
    samples = RNG.exponential(size=(400, 200))
    assert 5 <= sum(tails.upper_tail(values).p_value(values.max()) <= 0.05 for values in samples) <= 35


def test_the_limit_is_where_the_p_value_is_the_chance():
    tail = tails.upper_tail(RNG.normal(size=300))
    assert tail.p_value(tail.limit(0.05)) == pytest.approx(0.05)
    assert tails.upper_tail(np.ones(50)) is None
    assert tails.upper_tail(np.empty(0)) is None


def test_outliers_of_norms():
    norms = np.exp(0.2 * RNG.normal(size=500)) * np.linspace(2, 0.3, 500)
    assert not len(tails.find_outliers(norms, 0.05, 3.0).indices)
    norms[[100, 250, 400]] *= 12
    found = tails.find_outliers(norms, 0.05, 3.0)
    assert sorted(found.indices) == [100, 250, 400]
    assert found.largest_ratio > 8 > found.limit


def test_norms_that_always_scatter_have_no_outliers():
    fired = sum(len(tails.find_outliers(RNG.lognormal(0, 1, size=300), 0.05, 3.0).indices) > 0 for _ in range(100))
    assert fired <= 8


def test_many_outliers_stand_out_where_a_single_one_does_not():
    found = []
    for _ in range(20):
        norms = RNG.lognormal(0, 0.5, size=1000)
        norms[RNG.choice(1000, 10, replace=False)] = RNG.uniform(26, 50, size=10)
        found.append(tails.find_outliers(norms, 0.05, 3.0))
    assert sum(len(o.indices) >= 8 for o in found) >= 18
    assert max(o.count for o in found) > 1


def test_the_limit_is_the_ratio_at_which_the_test_decides():
    norms = RNG.lognormal(0, 0.3, size=500)
    norms[[50, 150, 250, 350]] = 20.0
    found = tails.find_outliers(norms, 0.05, 3.0)
    assert found.p_value <= 0.05
    assert np.sort(found.ratios_to_median)[-found.count] > found.limit


@pytest.mark.parametrize("values", [np.ones(50), np.tile([1e-308, 1e308], 25), np.full(50, 1e-300)])
def test_odd_series_raise_nothing(values):
    with np.errstate(all="raise", under="ignore"):
        tails.find_outliers(values, 0.05, 3.0)
    assert tails.find_outliers(values[:5], 0.05, 3.0) is None


def test_regular_heavy_tails_have_no_outliers():
    """Log-Laplace norms: the exponential tail is exact, and its scale is only estimated."""
    norms = [np.exp(0.5 * RNG.laplace(size=400)) for _ in range(200)]
    assert sum(len(tails.find_outliers(n, 0.05, 3.0).indices) > 0 for n in norms) <= 10


def test_outliers_among_widely_scattered_norms_are_found_and_symmetric_heavy_tails_are_not():
    random = np.random.default_rng(31)
    found = false = 0
    for _ in range(20):
        norms = random.lognormal(0, 0.7, size=1000)
        norms[random.choice(1000, 10, replace=False)] = random.uniform(26, 50, 10)
        found += len(tails.find_outliers(norms, 0.05, 3.0).indices) > 0
        false += len(tails.find_outliers(np.exp(0.5 * random.standard_t(5, size=1000)), 0.05, 3.0).indices) > 0
    assert found >= 15
    assert false <= 4
