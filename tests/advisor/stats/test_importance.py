"""How much each hyperparameter matters."""

from __future__ import annotations

import numpy as np
import pytest
from promise import kept, studies

from advisor.stats import importance


def response(costs: np.ndarray, *numeric: np.ndarray, choices: tuple[np.ndarray, ...] = ()) -> importance.ResponseModel:
    return importance.ResponseModel(list(numeric), list(choices), costs)


def test_importance_follows_the_true_shares() -> None:
    rng = np.random.default_rng(0)
    u = rng.random((80, 3))
    costs = 2 * u[:, 0] + u[:, 1] + 0.1 * rng.standard_normal(80)
    total = response(costs, *u.T).total_effects()
    assert total.shape == (importance.NUMBER_OF_DRAWS, 3)
    assert total.mean(0) == pytest.approx([0.8, 0.2, 0.0], abs=0.12)
    assert np.quantile(total[:, 2], 0.95) < 0.05


def test_an_effect_of_two_together_is_counted_for_both_and_as_an_interaction() -> None:
    rng = np.random.default_rng(1)
    u = rng.random((60, 3))
    costs = 4 * (u[:, 0] - 0.5) * (u[:, 1] - 0.5) + 0.05 * rng.standard_normal(60)
    found = response(costs, *u.T)
    assert (found.total_effects().mean(0)[:2] > 0.5).all()
    pairs = found.interaction_effects(range(3))
    assert pairs[0, 1].mean() > 0.5
    assert max(pairs[0, 2].mean(), pairs[1, 2].mean()) < 0.1
    p = importance.interaction_p_values(found, [(0, 1), (0, 2)])
    assert p[0, 1] <= 0.01
    assert p[0, 2] > 0.05


def test_the_best_value_moves_only_if_the_order_of_values_changes() -> None:
    rng = np.random.default_rng(4)
    u = rng.random((60, 2))
    noise = 0.02 * rng.standard_normal(60)
    assert response((u[:, 0] - u[:, 1]) ** 2 + noise, *u.T).best_value_moves(0, 1) > 0.9
    assert response(u[:, 0] * (1 - 0.5 * u[:, 1]) + noise, *u.T).best_value_moves(0, 1) < 0.5


@pytest.mark.parametrize("count", [10, 24, 60])
def test_the_interaction_test_keeps_its_level_for_additive_responses(count: int) -> None:
    rng = np.random.default_rng(count)
    seen = []
    for _ in studies(60):
        u = rng.random((count, 2))
        u[:, 1] = np.round(3 * u[:, 1]) / 3
        costs = (u[:, 0] - 0.4) ** 2 + 0.5 * u[:, 1] + 0.1 * rng.standard_normal(count)
        seen.append(importance.interaction_p_values(response(costs, *u.T), [(0, 1)])[0, 1] <= 0.05)
    assert kept(sum(seen), len(seen))


def test_shuffled_results_show_as_much_where_there_is_only_noise() -> None:
    rng = np.random.default_rng(2)
    noise = [response(rng.standard_normal(20), *rng.random((3, 20))).p_value() <= 0.05 for _ in studies(60)]
    assert kept(sum(noise), len(noise))
    u = rng.random((4, 30))
    assert response((u[0] - 0.5) ** 2 + 0.02 * rng.standard_normal(30), *u).p_value() <= 0.05


def test_it_holds_for_thousands_of_trials_failures_ties_choices_and_missing_axes() -> None:
    rng = np.random.default_rng(3)
    u, kind = rng.random((5000, 2)), rng.integers(0, 3, 5000) / 2
    only = np.where(kind == 0.5, rng.random(5000), np.nan)
    costs = np.round(u[:, 0] + (kind == 0.5), 1)
    costs[u[:, 1] > 0.9] = np.nan
    total = response(costs, *u.T, only, choices=(kind,)).total_effects()
    assert np.isfinite(total).all()
    assert total.mean(0)[0] > total.mean(0)[2]


def test_the_unit_a_few_huge_losses_and_the_draws_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    u = rng.random((30, 2))
    costs = np.exp(u[:, 0])
    one = response(costs, *u.T).total_effects()
    huge = costs * 1e300
    huge[np.argmax(costs)] = np.inf
    assert (response(huge, *u.T).total_effects() == one).all()
    assert (response(costs, *u.T).total_effects() == one).all()


def test_an_effect_within_a_group_shows_there():
    rng = np.random.default_rng(0)
    groups = np.repeat([0.0, 1.0], 20)
    rate, momentum = rng.random((2, 40))
    costs = 3 * (rate - 0.5) ** 2 + (groups == 0) * 0.5 * momentum + 0.02 * rng.standard_normal(40)
    made = importance.ResponseModel([rate, momentum], [groups], costs)
    assert made.p_value_within(1, groups == 0) <= 0.01
    assert made.p_value_within(1, groups == 1) > 0.05
    assert made.p_value_within(1, np.arange(40) < 7) == 1.0
