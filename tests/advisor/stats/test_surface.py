"""The response surface: ends that only show where another hyperparameter is good."""

from __future__ import annotations

import numpy as np
import pytest
from promise import kept, studies

from advisor.stats import ranks, surface


def test_sees_what_matters_only_where_another_is_good() -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(10):
        rate, width = rng.random(48), rng.integers(0, 4, 48) / 3
        costs = np.where(rate < 0.5, 1 - 0.5 * width + rate, 5 + 0.2 * rng.standard_normal(48))
        ends = surface.find_ends_with_optimum([rate, width], [], ranks.log_rank_scores(costs), 0.1, 0.9)
        found += any((e.axis, e.side) == (1, "high") and e.p_value <= 0.01 for e in ends)
    assert found >= 8


def test_keeps_its_promise_while_another_axis_rules() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in studies(60):
        u = rng.random((24, 4))
        values = ranks.log_rank_scores(-3 * u[:, 0] + 0.05 * rng.standard_normal(24))
        ends = surface.find_ends_with_optimum(list(u.T), [], values, 0.1, 0.9)
        wrong += any(e.axis != 0 and e.p_value * 4 <= 0.05 for e in ends)
    assert kept(wrong, len(studies(60)))


def test_categories_and_missing_positions_are_no_obstacle() -> None:
    rng = np.random.default_rng(2)
    u, kind = rng.random(30), np.repeat([0.0, 1.0], 15)
    only = np.where(kind == 1, rng.random(30), np.nan)
    ends = surface.find_ends_with_optimum([u, only], [kind], ranks.log_rank_scores(u + kind), 0.1, 0.9)
    assert [(e.axis, e.side) for e in ends][:1] == [(0, "low")]


@pytest.mark.parametrize("values", [np.zeros(10), np.arange(3.0)])
def test_nothing_to_see(values: np.ndarray) -> None:
    assert surface.find_ends_with_optimum([np.linspace(0, 1, len(values))], [], values, 0.1, 0.9) == []


def test_an_axis_that_half_of_the_points_lack_gives_a_valid_covariance() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        first = rng.random(24) < 0.5
        mine, other = np.where(first, rng.random(24), np.nan), np.where(first, np.nan, rng.random(24))
        values = (np.nan_to_num(mine, nan=0.3) - 0.5) ** 2 + (np.nan_to_num(other, nan=0.9) - 0.2) ** 2
        new = [np.array([0.5, np.nan]), np.array([np.nan, 0.5]), np.array([0.0, 1.0])]
        assert np.isfinite(surface.draw_results_at_points([mine, other], [first.astype(float)], values, new)).all()


def test_a_surface_predicts_with_less_certainty_far_from_the_points() -> None:
    u = np.linspace(0, 1, 12)
    kind = np.tile([0.0, 1.0], 6)
    fitted = surface.ResponseSurface([u], [kind], np.sin(3 * u) + kind)
    mean, spread = fitted.predict([np.array([0.5, 0.5, 3.0]), np.array([0.0, 1.0, 0.0])])
    assert mean[:2] == pytest.approx([np.sin(1.5), np.sin(1.5) + 1], abs=0.05)
    assert spread[2] > 5 * spread[0]


def test_forecasts_beyond_an_end_go_on_with_the_trend() -> None:
    u = np.linspace(0, 1, 16)
    drawn = surface.draw_results_at_points([u], [], -u + 0.02 * np.sin(40 * u), [np.array([0.5, 1.3])])
    assert drawn[:, 1].mean() < -1 < drawn[:, 0].mean()
    assert drawn[:, 1].std() > drawn[:, 0].std()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_unit_of_costs_does_not_depend_on_their_scale_even_with_ties(scale: float) -> None:
    costs = np.array([0.1, 0.1, 0.2, 0.3, 0.9])
    compressed = surface.compress_costs(scale * costs, 0.25)
    assert compressed == pytest.approx(np.arcsinh((costs - 0.1) / 0.1))
    assert surface.expand_costs(compressed, scale * costs, 0.25) == pytest.approx(scale * costs)
    assert (surface.compress_costs(np.full(3, scale)) == 0).all()


def test_an_axis_has_an_effect_only_if_its_positions_explain_the_values() -> None:
    rng, wrong, found = np.random.default_rng(5), 0, 0
    for _ in studies(60):
        u = rng.random((24, 3))
        fitted = surface.ResponseSurface(list(u.T), [], 4 * (u[:, 0] - 0.6) ** 2 + 0.1 * rng.standard_normal(24))
        wrong += fitted.p_value_of_axis(2) <= 0.05
        found += fitted.p_value_of_axis(0) <= 0.05
    assert kept(wrong, len(studies(60)))
    assert found >= 0.9 * len(studies(60))


def test_an_axis_has_an_effect_that_only_shows_together_with_a_choice() -> None:
    rates, kind = np.tile(np.linspace(0, 1, 12), 2), np.repeat([0.0, 1.0], 12)
    fitted = surface.ResponseSurface([rates], [kind], (rates - 0.2 - 0.6 * kind) ** 2)
    assert fitted.p_value_of_axis(0) <= 0.05
