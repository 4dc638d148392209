import numpy as np
import pytest
from promise import kept, studies

from advisor.stats.search_comparison import compare_searches


def single(costs):
    return [np.array([c]) for c in costs]


def test_a_search_that_is_better_all_through():
    rng = np.random.default_rng(0)
    found = compare_searches(single(rng.normal(0, 1, 30)), single(rng.normal(9, 1, 20)))
    assert found.chance_above() > 0.99
    assert found.chance_above(20) == 0
    assert found.half_size == 10


def test_one_lucky_setting_does_not_make_a_search():
    costs = np.random.default_rng(0).normal(0, 1, 20)
    assert compare_searches(single([*costs[:10], -9]), single(costs[10:])).chance_above() < 0.9


def test_two_settings_each_are_too_few():
    assert compare_searches(single([0, 0.1]), single([5, 6])).chance_above() < 0.95
    assert compare_searches(single([0, 0.1, 0.2]), single([5, 6, 7])).chance_above() >= 0.95


def test_ties_count_half():
    assert compare_searches(single([1] * 6), single([1] * 6)).chance_above() == pytest.approx(0.5)


def test_a_single_setting_is_no_search():
    found = compare_searches([np.array([1.0, 1.1, 0.9])], single(np.linspace(2, 3, 10)))
    assert found.chance_above() == 1
    assert found.best_cost_sds[0] == pytest.approx(0.08, abs=0.01)


def test_what_was_chosen_by_a_lucky_run_is_worth_its_other_runs():
    found = compare_searches([np.array([0.0, 1.0, 1.0]), np.array([2.0, 2.0, 2.0])], single([5.0]))
    assert set(np.round(5 - found.gains, 6)) == {0.5, 1.0, 2.0}


@pytest.mark.parametrize(("one", "other"), [(3, 3), (5, 5), (10, 10), (20, 5), (60, 60)])
def test_equal_searches_seldom_seem_to_differ(one, other):
    rng = np.random.default_rng(one + other)
    sure = [
        compare_searches(single(rng.lognormal(0, 1, one)), single(rng.lognormal(0, 1, other))).chance_above() >= 0.95
        for _ in studies(200)
    ]
    assert kept(sum(sure), len(sure), 0.06)
