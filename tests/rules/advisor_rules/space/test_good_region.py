from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from advisor_rules.space import _good_region


@pytest.mark.parametrize(("count", "gaps", "span"), [(4, 3, 5), (4, 3, 8), (5, 2, 3), (5, 3, 6), (6, 4, 9)])
def test_the_chance_of_a_span_counts_all_draws(count: int, gaps: int, span: int) -> None:
    n = 10
    first = [d[gaps] - d[0] + 1 <= span for d in combinations(range(n), count)]
    last = [d[-1] - d[-1 - gaps] + 1 <= span for d in combinations(range(n), count)]
    assert _good_region.chance_of_rank_span(n, count, gaps, span) == pytest.approx(np.mean(first))
    assert np.mean(first) == pytest.approx(np.mean(last))


def test_the_whole_axis_is_no_surprise() -> None:
    assert _good_region.chance_of_rank_span(10, 5, 4, 10) == pytest.approx(1)
    assert _good_region.chance_of_rank_span(5000, 500, 474, 5000) == pytest.approx(1)


def test_good_are_the_best_and_what_hardly_differs_from_them() -> None:
    costs = np.array([1.0, 1.1, 2.0, 3.0, 3.0, 4.0, np.nan, 5.0])
    assert _good_region.mask_good_points(costs, 0.1, 0.0).sum() == 5  # four at least, and a tie
    assert _good_region.mask_good_points(costs, 0.1, 3.0).sum() == 6
    assert _good_region.mask_good_points(np.full(5, np.nan), 0.1, 0.0).sum() == 0


def test_the_region_leaves_strays_out_but_never_the_best() -> None:
    positions = np.linspace(0, 1, 401)
    costs = np.abs(positions - 0.5)
    costs[10] = 0.001
    marked = _good_region.mask_good_points(costs, 0.2, 0.0)
    part = _good_region.find_good_region(positions, costs, marked, 0.2)
    assert part.low == positions[10]
    costs[10] = 0.05
    part = _good_region.find_good_region(positions, costs, _good_region.mask_good_points(costs, 0.2, 0.0), 0.2)
    assert part.good_outside_count >= 1
    assert part.low > 0.35
    assert part.p_value < 1e-6


def test_the_margin_holds_the_rest_of_the_region_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(1000):
        positions = np.sort(rng.random(100))
        inside = (positions > 0.3) & (positions < 0.6)
        marked = inside & (np.cumsum(inside) % 3 == 0)
        part = _good_region.find_good_region(positions, np.where(marked, rng.random(100), 2.0), marked, 0.2)
        outside += part is not None and part.low - part.margin > 0.3
    assert outside < 250


def test_ends_stay_where_good_points_are_or_most_failed() -> None:
    positions = np.linspace(0, 1, 21)
    part = _good_region.GoodRegion(0.4, 0.6, 5, 0, 5, 0.1, 0.001)
    fine = np.zeros(21, dtype=np.bool_)
    assert _good_region.range_to_keep(part, positions, fine) == pytest.approx((0.3, 0.7))
    assert _good_region.range_to_keep(part, positions, positions > 0.7) == pytest.approx((0.3, 1.0))
    assert _good_region.range_to_keep(_good_region.GoodRegion(0.15, 0.6, 5, 0, 5, 0.01, 0.001), positions, fine)[0] == 0


@pytest.mark.parametrize("levels", [5, 1000])
def test_what_has_nothing_to_do_with_costs_seldom_seems_to(levels: int) -> None:
    rng = np.random.default_rng(levels)
    chances = []
    for _ in range(200):
        costs = np.round(rng.standard_normal(30), 1)
        costs[rng.random(30) < 0.2] = np.nan
        chances.append(_good_region.p_of_unrelated_costs(rng.integers(0, levels, 30) / levels, costs))
    assert np.mean(np.array(chances) <= 0.05) <= 0.09
    assert np.mean(np.array(chances) <= 0.5) >= 0.35


def test_a_valley_an_end_and_nothing_at_all_to_tell() -> None:
    positions, rng = np.linspace(0, 1, 40), np.random.default_rng(0)
    assert _good_region.p_of_unrelated_costs(positions, np.abs(positions - 0.4) + 0.2 * rng.random(40)) <= 0.01
    assert _good_region.p_of_unrelated_costs(positions, positions + 0.5 * rng.random(40)) <= 0.01
    assert _good_region.p_of_unrelated_costs(np.full(40, 0.5), rng.random(40)) == 1
    assert _good_region.p_of_unrelated_costs(positions, np.ones(40)) == 1


def test_a_part_that_ends_at_one_of_the_best_two_points_gets_room_there() -> None:
    positions, costs = np.array([0.1, 0.2, 0.3, 0.4, 0.8]), np.array([0.9, 0.3, 0.2, 0.1, 0.9])
    assert _good_region.extend_to_best_points((0.2, 0.4), positions, costs) == pytest.approx((0.2, 0.6))
    assert _good_region.extend_to_best_points((0.2, 0.5), positions, costs) == (0.2, 0.5)
