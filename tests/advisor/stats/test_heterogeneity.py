"""Whether values with errors lie further apart than equal ones would."""

from __future__ import annotations

import numpy as np
import pytest
from promise import ALL

from advisor.stats.heterogeneity import measure_heterogeneity, p_value_of_zero_mean


@pytest.mark.parametrize("k", [2, 5, 20])
def test_equal_values_exceed_the_range_as_often_as_promised(k: int) -> None:
    drawn = np.random.default_rng(k).standard_normal((2000 if ALL else 500, k))
    found = [measure_heterogeneity(values, np.ones(k), 0.05) for values in drawn]
    assert np.mean([f.observed_range > f.critical_range for f in found]) == pytest.approx(0.05, abs=0.015 if ALL else 0.03)
    assert np.mean([f.p_value for f in found]) == pytest.approx(0.5, abs=0.03 if ALL else 0.04)


def test_two_values_by_the_textbook() -> None:
    found = measure_heterogeneity(np.array([0.0, 2.0]), np.array([0.5, 0.5]), 0.05)
    assert found.critical_range == pytest.approx(1.96 * 2**0.5 * 0.5, rel=1e-3)
    assert found.chance_below_critical_range < 0.2


def test_values_without_error() -> None:
    one, two = (
        measure_heterogeneity(np.array([1.0, 1.0]), np.zeros(2), 0.05),
        measure_heterogeneity(np.array([1.0, 2.0]), np.zeros(2), 0.05),
    )
    assert (one.p_value, two.p_value, two.critical_range, two.chance_below_critical_range) == (1, 0, 0, 0)


def test_the_mean_of_differences() -> None:
    assert p_value_of_zero_mean(np.array([0.1, 0.1])) == 0
    assert p_value_of_zero_mean(np.zeros(3)) == 1
    assert p_value_of_zero_mean(np.array([1.0, -1.0, 0.1, -0.1])) == pytest.approx(1.0)


def test_with_the_examples_that_are_needed_the_range_is_detectable() -> None:
    values, errors = np.array([0.1, 0.11, 0.12]), np.full(3, 0.02)
    times = measure_heterogeneity(values, errors, 0.05).examples_factor
    assert measure_heterogeneity(values, errors / times**0.5, 0.05).p_value == pytest.approx(0.05, abs=1e-3)
    assert measure_heterogeneity(values * 0, errors, 0.05).examples_factor == np.inf
