"""Shares, ratios and means with their uncertainty, and growth with a size."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.signal import lfilter

from advisor.stats.estimates import (
    Estimate,
    chance_of_at_least,
    difference_of_means,
    find_saturation,
    median_of_series,
    p_value_of_share,
    pooled_mean,
    ratio_of_sums,
    standard_error_of_share,
)

RNG = np.random.default_rng(0)


def test_chance_of_a_share_is_the_binomial_one():
    assert p_value_of_share(0.6, 50, 0.5) == pytest.approx(stats.binom.sf(29, 50, 0.5))
    assert p_value_of_share(0.0, 50, 0.5) == 1.0
    assert p_value_of_share(0.9, 0, 0.5) == 1.0


def test_the_error_of_a_share():
    np.testing.assert_allclose(standard_error_of_share(np.array([0.5]), np.array([100.0])), 0.05, rtol=1e-6)
    assert (standard_error_of_share(np.array([0.0, 1.0]), np.array([100.0, 100.0])) > 0.005).all()


def test_a_ratio_of_sums_weighs_its_points():
    found = ratio_of_sums(np.array([1.0, 0.0, 0.0, 0.0]), np.ones(4), np.array([3.0, 1.0, 1.0, 1.0]))
    assert found.value == pytest.approx(0.5)


def test_few_points_say_nothing_of_the_error():
    found = ratio_of_sums(np.array([1.0, 2.0]), np.ones(2), np.ones(2))
    assert math.isnan(found.error)
    assert math.isnan(found.chance_above(0.5))


def test_a_constant_ratio_is_certain():
    assert ratio_of_sums(np.full(40, 0.3), np.ones(40), np.ones(40)).chance_above(0.29) == 1.0
    assert Estimate(0.3, 0.0, 9).chance_above(0.31) == 0.0


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


def means(levels, noise=0.02, count=50):
    return [median_of_series(math.log(v) + noise * RNG.normal(size=count)) for v in levels]


def grow(levels, sizes=None, **kwargs):
    sizes = np.array(sizes or [2.0**i for i in range(len(levels))])
    return find_saturation(sizes, means(levels, **kwargs), material=0.1, doubling=1.5, alpha=0.05)


def test_the_last_size_that_brought_more_is_chosen():
    found = grow([100, 190, 360, 365, 362])
    assert found.chosen_index == 2
    assert found.saturation_probability > 0.99
    assert found.max_growth_factor == pytest.approx(1.9, rel=0.05)
    assert found.never_scales_probability < 0.01


def test_growth_to_the_end_leaves_nothing_to_saturate():
    found = grow([100, 190, 360])
    assert found.chosen_index == 2
    assert math.isnan(found.saturation_probability)


def test_no_size_brings_more():
    found = grow([100, 101, 99])
    assert (found.chosen_index, found.saturation_probability > 0.99, found.never_scales_probability > 0.99) == (0, True, True)


def test_sizes_that_are_no_doublings_are_put_per_doubling():
    assert grow([100, 400], sizes=[16.0, 64.0]).max_growth_factor == pytest.approx(2, rel=0.05)
    assert math.isnan(grow([100, 105], sizes=[100.0, 110.0]).never_scales_probability)


def test_one_value_each_leaves_everything_open():
    found = find_saturation(
        np.array([1.0, 2.0]), [Estimate(0.0, math.nan, 0), Estimate(0.1, math.nan, 0)], material=0.1, doubling=1.5, alpha=0.05
    )
    assert found.chosen_index == 0
    assert math.isnan(found.saturation_probability)


def test_runs_that_differ_say_more_than_the_noise_within():
    within = [Estimate(0.0, 0.001, 9), Estimate(1.0, 0.001, 9), Estimate(2.0, 0.001, 9)]
    assert pooled_mean(within).error == pytest.approx(1 / math.sqrt(3))
    assert pooled_mean([Estimate(1.0, 0.5, 9), Estimate(1.0, 0.5, 9)]).error == pytest.approx(0.5 / math.sqrt(2))


def test_difference_without_noise_is_certain():
    assert difference_of_means(Estimate(1.0, 0.0, 9), Estimate(0.5, 0.0, 9)).chance_above(0.4) == 1.0
