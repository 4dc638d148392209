from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from promise import kept, studies

from advisor.model.space import FloatArray
from advisor.stats.blocks import MeanLevel, mean_level, mean_level_with_trend


def test_the_level_is_the_mean_and_its_error_that_of_the_blocks() -> None:
    one = mean_level(np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]))
    assert one.mean == 3.0
    assert np.isclose(one.error, np.std([1, 2, 3, 4, 5], ddof=1) / np.sqrt(5))
    assert one.freedom == 4


def test_a_trend_is_no_noise() -> None:
    rising = np.linspace(0.0, 1.0, 20)
    assert mean_level_with_trend(rising).mean == mean_level(rising).mean
    assert mean_level_with_trend(rising).p_value_above(0.4) < 1e-6
    assert mean_level(rising).p_value_above(0.4) > 0.1


def test_p_values_agree_with_the_direction() -> None:
    one, other = mean_level(np.linspace(0.9, 1.1, 20)), mean_level(np.linspace(0.4, 0.6, 20))
    assert one.p_value_above(0.5) < 0.01 < 0.99 < one.p_value_below(0.5)
    assert one.p_value_above_other(other) < 0.01 < 0.99 < other.p_value_above_other(one)


def test_constant_parts_are_compared_exactly() -> None:
    one = mean_level(np.ones(20))
    assert (one.p_value_above(0.5), one.p_value_above(1.0), one.p_value_below(2.0)) == (0.0, 1.0, 0.0)
    assert one.p_value_above_other(mean_level(np.zeros(20))) == 0.0
    assert one.p_value_above_other(one) == 1.0


@pytest.mark.parametrize("of", [mean_level, mean_level_with_trend])
def test_it_keeps_its_level_on_correlated_noise(of: Callable[[FloatArray], MeanLevel]) -> None:
    above = []
    for seed in studies(200):
        noise = np.random.default_rng(seed).normal(size=101)
        above.append(of(noise[1:] + 0.5 * noise[:-1]).p_value_above(0.0) <= 0.05)
    assert kept(sum(above), len(above))
