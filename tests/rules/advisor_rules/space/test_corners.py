"""Trials that fail only where two hyperparameters come together."""

import numpy as np
import pytest
from promise import kept, scaled, studies

from advisor_rules.space._corners import find_failure_corner, log_likelihood_ratio


def test_a_corner_is_found_among_four_axes():
    rng = np.random.default_rng(0)
    at = rng.random((60, 4))
    failed = (at[:, 1] > 0.6) & (at[:, 3] < 0.5)
    found = find_failure_corner(at, failed)
    assert (found.axes, found.sides) == ((1, 3), ("high", "low"))
    assert found.edge_positions == (at[failed, 1].min(), at[failed, 3].max())
    assert found.p <= 0.01
    assert found.corner_score == log_likelihood_ratio(found.inside, failed)


def test_chance_shows_none():
    fired = 0
    for seed in studies(40):
        rng = np.random.default_rng(seed)
        found = find_failure_corner(rng.random((25, 3)), rng.random(25) < 0.3)
        fired += found is not None and found.p <= 0.05
    assert kept(fired, len(studies(40)))


@pytest.mark.parametrize("failed", [np.zeros(9, bool), np.ones(9, bool)])
def test_nothing_to_tell_apart(failed):
    assert find_failure_corner(np.random.default_rng(0).random((9, 2)), failed) is None


def test_one_axis_has_no_corner():
    assert find_failure_corner(np.linspace(0, 1, 9)[:, None], np.arange(9) > 5) is None


def test_a_region_that_fails_as_often_as_the_rest_gains_nothing():
    failed = np.tile([True, False], 10)
    assert log_likelihood_ratio(np.arange(20) < 10, failed) == 0


def test_a_corner_among_many_axes_is_found_and_noise_is_not() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for seed in studies(20):
        positions = np.random.default_rng(seed).random((60, 13))
        if (found_one := find_failure_corner(positions, rng.random(60) < 0.1)) is not None:
            found += found_one.p <= 0.05
    assert found <= scaled(4, of=20)
    positions = rng.random((120, 13))
    found_one = find_failure_corner(positions, (positions[:, 3] > 0.5) & (positions[:, 11] < 0.5))
    assert found_one is not None
    assert found_one.axes == (3, 11)
    assert found_one.p <= 0.01


def test_a_corner_leaves_out_the_trials_that_it_must_not_contain() -> None:
    at = np.random.default_rng(0).random((200, 2))
    failed = (at[:, 0] > 0.5) & (at[:, 1] > 0.5)
    good = np.flatnonzero(failed)[np.argsort(at[failed, 0])[:3]]
    failed[good] = False
    assert find_failure_corner(at, failed).inside[good].any()
    found = find_failure_corner(at, failed, good)
    assert not found.inside[good].any()
    assert found.p <= 0.01
