"""Crowding at the ends of a range, the response along an axis, how far to widen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advisor.model.space import Domain
from advisor.stats import boundaries
from advisor.stats.outliers import Side


def test_five_points_in_order_have_the_exact_p_value() -> None:
    order = np.arange(5.0)
    p = boundaries.crowding(order[:, None] / 4, boundaries.scores(-order))
    assert p[0, 1] == pytest.approx(2 / 120)  # this order and its mirror image, of 5! = 120
    assert p[0, 0] == 1


def test_crowding_asks_where_trials_were_sampled() -> None:
    rng = np.random.default_rng(3)
    crowded = rng.beta(8, 1, 40)[:, None]  # nearly all trials lie near the high end, good ones and bad ones
    assert boundaries.crowding(crowded, boundaries.scores(rng.standard_normal(40))).min() > 0.05


def test_no_variation_is_no_crowding() -> None:
    assert (boundaries.crowding(np.full((6, 2), 0.5), np.arange(6.0)) == 1).all()
    assert (boundaries.crowding(np.arange(6.0)[:, None], np.zeros(6)) == 1).all()
    assert (boundaries.crowding(np.full((6, 1), np.nan), np.arange(6.0)) == 1).all()


@pytest.mark.parametrize(("best", "low", "high"), [(-0.2, 0.9, 0), (0.5, 0, 0), (1.2, 0, 0.9)])
def test_response_finds_the_end_or_the_interior(best: float, low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    u, other = rng.random(40), rng.random(40)
    values = boundaries.scores((u - best) ** 2 + 0.5 * other + 0.02 * rng.standard_normal(40))
    response = boundaries.responses([u, other], [], values, 0.1)[0]
    assert (response.low >= low, response.high >= high) == (True, True)
    assert response.low <= 0.05 or low
    assert response.high <= 0.05 or high


@pytest.mark.parametrize(
    ("name", "domain", "side", "expected"),
    [
        ("learning_rate", Domain(low=1e-5, high=1e-3, scale="log"), "high", (1e-5, 1e-2)),
        ("learning_rate", Domain(low=1e-5, high=1e-3, scale="log"), "low", (1e-6, 1e-3)),
        ("width", Domain(type="int", low=64, high=256, scale="log"), "high", (64, 512)),
        ("depth", Domain(type="int", low=1, high=3), "low", None),
        ("depth", Domain(type="int", low=2, high=4), "low", (1, 4)),
        ("dropout", Domain(low=0.0, high=0.5), "low", None),
        ("dropout", Domain(low=0.1, high=0.5), "low", (0, 0.5)),
        ("beta2", Domain(low=0.9, high=0.99), "high", (0.9, 0.999)),
        ("focal_gamma", Domain(low=0.0, high=5.0), "high", (0, 6.2)),
        ("semantic_weight", Domain(low=-1.0, high=0.5), "low", (-1.4, 0.5)),
        ("x", Domain(low=-1.0, high=1.0), "high", (-1, 1.5)),
        ("x", Domain(low=0.2, high=1.0), "low", (0, 1)),
        ("x", Domain(low=0.2, high=1.0, limits=(-1.0, None)), "low", (0, 1)),
        ("learning_rate", Domain(low=5.12e-4, high=9.84e-4), "high", (5.12e-4, 2.95e-3)),
        ("learning_rate", Domain(low=0.01, high=0.1), "low", (0.0032, 0.1)),
        ("width", Domain(type="int", low=64, high=256, scale="log", limits=(None, 300)), "high", (64, 300)),
        ("width", Domain(type="int", low=64, high=256, scale="log", limits=(None, 256)), "high", None),
        ("learning_rate", Domain(low=1e-5, high=1e-3, scale="log", limits=(2e-6, None)), "low", (2e-6, 1e-3)),
        ("x", Domain(low=1e-300, high=1e300, scale="log"), "high", (1e-300, 1e301)),
    ],
)
def test_widen_goes_by_the_minimum_step_and_stops_at_limits(
    name: str, domain: Domain, side: Side, expected: tuple[float, float] | None
) -> None:
    assert boundaries.widen(name, domain, side, 0.0) == (pytest.approx(expected) if expected else None)


def test_widen_is_bounded_however_far_the_trend_goes() -> None:
    wide = Domain(low=1e-8, high=1e-1, scale="log")
    assert boundaries.widen("learning_rate", wide, "high", math.inf) == pytest.approx((1e-8, 1))
    assert boundaries.widen("x", Domain(low=0.0, high=1.0), "high", math.inf) == (0, 1.5)


def test_an_optimum_inside_the_only_range_is_visible() -> None:
    rng = np.random.default_rng(0)
    u = np.linspace(0, 1, 16)
    noise = 0.01 * rng.standard_normal(16)
    inside, beyond = (u - 0.8) ** 2 + noise, (u - 1.2) ** 2 + noise
    assert boundaries.turned(u, inside, "high")
    assert boundaries.turned(1 - u, inside, "low")
    assert not boundaries.turned(u, beyond, "high")
    cliff = np.where(u == 1, 1.0, -u) + noise
    assert boundaries.turned(u, cliff, "high")
    assert boundaries.worse_outermost(u, cliff, "high")
    assert not boundaries.worse_outermost(u, -u, "high")


def test_a_turn_before_a_position_is_rejected_only_if_results_improve_up_to_it() -> None:
    rng = np.random.default_rng(0)
    u = np.linspace(0, 1, 16)
    noise = 0.01 * rng.standard_normal(16)
    assert boundaries.p_of_turn(u, -u + noise, 0.9) < 0.01
    assert boundaries.p_of_turn(u, (u - 0.5) ** 2 + noise, 0.9) > 0.5
    assert boundaries.p_of_turn(u[:3], -u[:3], 0.9) == 1
    assert boundaries.p_of_turn(u, np.ones(16), 0.9) == 1


def test_a_best_outermost_point_is_no_visible_turn() -> None:
    u = np.linspace(0, 1, 12)
    flattening = np.exp(-6 * u) - 0.05 * u
    assert not boundaries.turned(u, flattening, "high")
