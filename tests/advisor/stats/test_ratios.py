"""Shares and ratios of sums."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from advisor.stats.ratios import Ratio, chance_of_at_least, error_of_share, p_value_of_share, ratio_of_sums

RNG = np.random.default_rng(0)


def test_chance_of_a_share_is_the_binomial_one():
    assert p_value_of_share(0.6, 50, 0.5) == pytest.approx(stats.binom.sf(29, 50, 0.5))
    assert p_value_of_share(0.0, 50, 0.5) == 1.0
    assert p_value_of_share(0.9, 0, 0.5) == 1.0


def test_the_error_of_a_share():
    np.testing.assert_allclose(error_of_share(np.array([0.5]), np.array([100.0])), 0.05, rtol=1e-6)
    assert (error_of_share(np.array([0.0, 1.0]), np.array([100.0, 100.0])) > 0.005).all()


def test_a_ratio_of_sums_weighs_its_points():
    found = ratio_of_sums(np.array([1.0, 0.0, 0.0, 0.0]), np.ones(4), np.array([3.0, 1.0, 1.0, 1.0]))
    assert found.value == pytest.approx(0.5)


def test_few_points_say_nothing_of_the_error():
    found = ratio_of_sums(np.array([1.0, 2.0]), np.ones(2), np.ones(2))
    assert math.isnan(found.error)
    assert found.chance_above(0.5) == 0.0


def test_a_constant_ratio_is_certain():
    assert ratio_of_sums(np.full(40, 0.3), np.ones(40), np.ones(40)).chance_above(0.29) == 1.0
    assert Ratio(0.3, 0.0, 9).chance_above(0.31) == 0.0


@pytest.mark.parametrize("lag", [0.0, 0.8])
def test_the_error_is_about_right(lag):
    """Also with strong autocorrelation."""
    noise = lfilter([1.0], [1.0, -lag], RNG.normal(size=(400, 400)))
    hits = sum(ratio_of_sums(1 + 0.1 * n, np.full(400, 2.0), np.ones(400)).chance_above(0.5) > 0.95 for n in noise)
    assert 8 <= hits <= 36


def test_chance_of_at_least_is_binomial_for_equal_chances():
    assert chance_of_at_least(3, np.full(3, 0.25)) == pytest.approx(0.25**3)
    assert chance_of_at_least(4, np.full(5, 0.25)) == pytest.approx(5 * 0.25**4 * 0.75 + 0.25**5)
    assert chance_of_at_least(0, np.array([])) == 1.0
