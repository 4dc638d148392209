from __future__ import annotations

import numpy as np

from advisor_rules.space import _fairness


def test_an_end_is_judged_by_how_many_of_the_rest_lie_beyond_it() -> None:
    groups = np.repeat([0, 1], 8)
    u = np.concatenate([np.linspace(0, 0.5, 8), np.linspace(0, 1, 8)])
    costs = 1 - u
    found = _fairness.find_partly_tried_groups(groups, [u], costs, edge=0.1, certainty=0.9, level=0.05)
    assert found == []  # four of eight beyond: 16 choose 8 gives that in one of 26 studies, looked at twice
    u = np.concatenate([np.linspace(0, 0.3, 8), np.linspace(0, 1, 8)])
    (end,) = _fairness.find_partly_tried_groups(groups, [u], 1 - u, edge=0.1, certainty=0.9, level=0.05)
    assert (end.group, end.side, end.points_beyond_end) == (0, "high", 5)


def test_a_group_is_outnumbered_only_if_numbers_could_decide() -> None:
    groups = np.repeat([0, 1], [3, 30])
    rng = np.random.default_rng(0)
    even = rng.permutation(33) / 33.0
    even[:3] += 1e-3
    few = _fairness.find_small_groups(groups, even, certainty=0.9, level=0.05)
    assert [(o.group, o.smaller_group_size, o.best_group_size) for o in few] == [(0, 3, 30)]
    worse = np.where(groups == 0, 10.0, even)
    assert _fairness.find_small_groups(groups, worse, certainty=0.9, level=0.05) == []


def test_nothing_finite_and_a_single_group_are_no_comparison() -> None:
    assert _fairness.find_small_groups(np.zeros(5, int), np.arange(5.0), certainty=0.9, level=0.05) == []
    assert _fairness.find_small_groups(np.arange(5), np.full(5, np.nan), certainty=0.9, level=0.05) == []
    assert (
        _fairness.find_partly_tried_groups(
            np.arange(4) % 2, [np.full(4, np.nan)], np.arange(4.0), edge=0.1, certainty=0.9, level=0.05
        )
        == []
    )
