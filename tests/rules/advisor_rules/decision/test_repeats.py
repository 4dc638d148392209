"""Gaps between repeats, and the chance of replication."""

import numpy as np
import pytest

from advisor.stats.difference import difference
from advisor_rules.decision._repeats import chance_of_replication, widest_cost_gap


def test_a_barely_significant_lead_shows_again_half_of_the_time():
    one = np.array([0.0, 1.0])
    found = difference(one, one + 0.0, pool=(1.0, 1000))
    assert chance_of_replication(found, 0.05) == pytest.approx(0.025, abs=0.001)
    found = difference(np.zeros(1), np.array([1.96 * 2**0.5]), pool=(1.0, 100_000))
    assert chance_of_replication(found, 0.05) == pytest.approx(0.5, abs=0.01)


def test_repeats_that_fall_apart():
    found = widest_cost_gap(np.array([0.0969, 0.8966, 0.0970, 0.0998, 0.8967]))
    assert found.smaller_group == (1, 4)
    assert found.is_smaller_group_worse
    assert found.p_value < 0.01
    lucky = widest_cost_gap(np.array([0.1, 0.9, 0.901, 0.902, 0.903]))
    assert (lucky.smaller_group, lucky.is_smaller_group_worse) == ((0,), False)
    assert widest_cost_gap(np.array([1.0, 2.0, 9.0])) is None
    assert widest_cost_gap(np.ones(6)) is None
    assert widest_cost_gap(np.array([0.50, 0.50, 0.53, 0.56])).p_value > 0.05  # ties


def test_normal_repeats_seldom_fall_apart():
    rng = np.random.default_rng(5)
    for n in (4, 5, 10, 40):
        assert np.mean([widest_cost_gap(rng.normal(0, 1, n)).p_value <= 0.05 for _ in range(300)]) <= 0.085
