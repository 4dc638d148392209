"""Tails of noisy series."""

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
