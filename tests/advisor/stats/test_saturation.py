"""Growth with a size, and where it ends."""

import math

import numpy as np
import pytest

from advisor.stats.saturation import MeanWithError, difference_of_means, find_saturation, median_of_series, pooled_mean

RNG = np.random.default_rng(0)


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
        np.array([1.0, 2.0]),
        [MeanWithError(0.0, math.nan, 0), MeanWithError(0.1, math.nan, 0)],
        material=0.1,
        doubling=1.5,
        alpha=0.05,
    )
    assert found.chosen_index == 0
    assert math.isnan(found.saturation_probability)


def test_runs_that_differ_say_more_than_the_noise_within():
    within = [MeanWithError(0.0, 0.001, 9), MeanWithError(1.0, 0.001, 9), MeanWithError(2.0, 0.001, 9)]
    assert pooled_mean(within).error == pytest.approx(1 / math.sqrt(3))
    assert pooled_mean([MeanWithError(1.0, 0.5, 9), MeanWithError(1.0, 0.5, 9)]).error == pytest.approx(0.5 / math.sqrt(2))


def test_difference_without_noise_is_certain():
    assert difference_of_means(MeanWithError(1.0, 0.0, 9), MeanWithError(0.5, 0.0, 9)).chance_above(0.4) == 1.0
