"""Growth with a size, and where it ends."""

import math

import numpy as np
import pytest

from advisor.stats.saturation import Mean, difference, growth, pooled_mean, series_mean

RNG = np.random.default_rng(0)


def means(levels, noise=0.02, count=50):
    return [series_mean(math.log(v) + noise * RNG.normal(size=count)) for v in levels]


def grow(levels, sizes=None, **kwargs):
    sizes = np.array(sizes or [2.0**i for i in range(len(levels))])
    return growth(sizes, means(levels, **kwargs), material=0.1, doubling=1.5, alpha=0.05)


def test_the_last_size_that_brought_more_is_chosen():
    found = grow([100, 190, 360, 365, 362])
    assert found.chosen == 2
    assert found.saturated > 0.99
    assert found.max_factor == pytest.approx(1.9, rel=0.05)
    assert found.never < 0.01


def test_growth_to_the_end_leaves_nothing_to_saturate():
    found = grow([100, 190, 360])
    assert found.chosen == 2
    assert math.isnan(found.saturated)


def test_no_size_brings_more():
    found = grow([100, 101, 99])
    assert (found.chosen, found.saturated > 0.99, found.never > 0.99) == (0, True, True)


def test_sizes_that_are_no_doublings_are_put_per_doubling():
    assert grow([100, 400], sizes=[16.0, 64.0]).max_factor == pytest.approx(2, rel=0.05)
    assert math.isnan(grow([100, 105], sizes=[100.0, 110.0]).never)


def test_one_value_each_leaves_everything_open():
    found = growth(
        np.array([1.0, 2.0]), [Mean(0.0, math.nan, 0), Mean(0.1, math.nan, 0)], material=0.1, doubling=1.5, alpha=0.05
    )
    assert found.chosen == 0
    assert math.isnan(found.saturated)


def test_runs_that_differ_say_more_than_the_noise_within():
    within = [Mean(0.0, 0.001, 9), Mean(1.0, 0.001, 9), Mean(2.0, 0.001, 9)]
    assert pooled_mean(within).error == pytest.approx(1 / math.sqrt(3))
    assert pooled_mean([Mean(1.0, 0.5, 9), Mean(1.0, 0.5, 9)]).error == pytest.approx(0.5 / math.sqrt(2))


def test_difference_without_noise_is_certain():
    assert difference(Mean(1.0, 0.0, 9), Mean(0.5, 0.0, 9)).chance_above(0.4) == 1.0
