"""Permutation test of what groups need."""

import math

import numpy as np

from advisor_rules.batch._steps_to_target import compare_steps

RNG = np.random.default_rng(0)


def test_the_same_everywhere_is_no_growth():
    found = compare_steps([np.full(5, 40.0)] * 3, "median")
    assert (found.largest_ratio, found.p_value) == (1.0, 1.0)


def test_growth_is_told_by_medians_or_by_the_least():
    groups = [np.array([40.0, 41, 39, 40]), np.array([60.0, 61, 59, 62])]
    found = compare_steps(groups, "median")
    assert found.group_levels.tolist() == [40.0, 60.0]
    assert found.largest_ratio == 1.5
    assert found.p_value < 0.05
    assert compare_steps(groups, "least").group_levels.tolist() == [39.0, 59.0]


def test_targets_that_were_never_reached_are_the_last():
    found = compare_steps([np.array([40.0, 41, 39, 42]), np.array([math.inf] * 4)], "median")
    assert found.largest_ratio == math.inf
    assert found.p_value < 0.05
    assert compare_steps([np.array([math.inf] * 4)] * 2, "median").p_value == 1.0


def test_it_keeps_its_level():
    fired = sum(
        compare_steps([RNG.exponential(size=int(n)) for n in RNG.integers(2, 9, 3)], "median").p_value <= 0.05
        for _ in range(300)
    )
    assert fired <= 26


def test_the_same_data_give_the_same_answer():
    groups = [RNG.normal(10, 1, size=6) for _ in range(3)]
    assert compare_steps(groups, "least").p_value == compare_steps(groups, "least").p_value
