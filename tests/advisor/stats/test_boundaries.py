"""Crowding at the ends of a range, the response along an axis."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.stats import boundaries, ranks


def test_five_points_in_order_have_the_exact_p_value() -> None:
    order = np.arange(5.0)
    p = boundaries.p_values_of_clusters(order[:, None] / 4, ranks.log_rank_scores(-order))
    assert p[0, 1] == pytest.approx(2 / 120)  # this order and its mirror image, of 5! = 120
    assert p[0, 0] == 1


def test_crowding_asks_where_trials_were_sampled() -> None:
    rng = np.random.default_rng(3)
    crowded = rng.beta(8, 1, 40)[:, None]  # nearly all trials lie near the high end, good ones and bad ones
    assert boundaries.p_values_of_clusters(crowded, ranks.log_rank_scores(rng.standard_normal(40))).min() > 0.05


def test_no_variation_is_no_crowding() -> None:
    assert (boundaries.p_values_of_clusters(np.full((6, 2), 0.5), np.arange(6.0)) == 1).all()
    assert (boundaries.p_values_of_clusters(np.arange(6.0)[:, None], np.zeros(6)) == 1).all()
    assert (boundaries.p_values_of_clusters(np.full((6, 1), np.nan), np.arange(6.0)) == 1).all()


@pytest.mark.parametrize(("best", "low", "high"), [(-0.2, 0.9, 0), (0.5, 0, 0), (1.2, 0, 0.9)])
def test_response_finds_the_end_or_the_interior(best: float, low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    u, other = rng.random(40), rng.random(40)
    values = ranks.log_rank_scores((u - best) ** 2 + 0.5 * other + 0.02 * rng.standard_normal(40))
    response = boundaries.fit_responses([u, other], [], values, 0.1)[0]
    assert (response.chance_of_low_end >= low, response.chance_of_high_end >= high) == (True, True)
    assert response.chance_of_low_end <= 0.05 or low
    assert response.chance_of_high_end <= 0.05 or high


def test_an_optimum_inside_the_only_range_is_visible() -> None:
    rng = np.random.default_rng(0)
    u = np.linspace(0, 1, 16)
    noise = 0.01 * rng.standard_normal(16)
    inside, beyond = (u - 0.8) ** 2 + noise, (u - 1.2) ** 2 + noise
    assert boundaries.response_turns_inside(u, inside, "high")
    assert boundaries.response_turns_inside(1 - u, inside, "low")
    assert not boundaries.response_turns_inside(u, beyond, "high")
    cliff = np.where(u == 1, 1.0, -u) + noise
    assert boundaries.response_turns_inside(u, cliff, "high")
    assert boundaries.outermost_is_worse(u, cliff, "high")
    assert not boundaries.outermost_is_worse(u, -u, "high")


def test_a_turn_before_a_position_is_rejected_only_if_results_improve_up_to_it() -> None:
    rng = np.random.default_rng(0)
    u = np.linspace(0, 1, 16)
    noise = 0.01 * rng.standard_normal(16)
    assert boundaries.p_value_of_turn(u, -u + noise, 0.9) < 0.01
    assert boundaries.p_value_of_turn(u, (u - 0.5) ** 2 + noise, 0.9) > 0.5
    assert boundaries.p_value_of_turn(u[:3], -u[:3], 0.9) == 1
    assert boundaries.p_value_of_turn(u, np.ones(16), 0.9) == 1


def test_a_best_outermost_point_is_no_visible_turn() -> None:
    u = np.linspace(0, 1, 12)
    flattening = np.exp(-6 * u) - 0.05 * u
    assert not boundaries.response_turns_inside(u, flattening, "high")


def test_known_positions_that_are_all_equal_say_nothing():
    positions = np.where(np.arange(12) < 6, 0.5, np.nan)[:, None]
    assert boundaries.p_values_of_clusters(positions, np.arange(12.0)).tolist() == [[1.0, 1.0]]


def test_an_infinite_position_is_a_missing_one() -> None:
    positions, values = np.linspace(0, 1, 12)[:, None], np.linspace(0, 1, 12) ** 2
    missing, infinite = positions.copy(), positions.copy()
    missing[3], infinite[3] = np.nan, np.inf
    expected = boundaries.p_values_of_clusters(missing, values)
    np.testing.assert_array_equal(boundaries.p_values_of_clusters(infinite, values), expected)
