from __future__ import annotations

import math

import numpy as np
import pytest
from promise import studies

from advisor.stats.importance import axis_coordinates
from advisor_rules.space import _scale_test

DECADES = 3.0


def logarithmic(linear: np.ndarray) -> np.ndarray:
    """Positions on the log scale of positions on a linear one, of a range of three decades."""
    low = 10**-DECADES
    return (np.log10(low + linear * (1 - low)) + DECADES) / DECADES


def linear(log: np.ndarray) -> np.ndarray:
    low = 10**-DECADES
    return (10 ** (DECADES * (log - 1)) - low) / (1 - low)


def test_tells_a_response_to_the_logarithm_from_one_to_the_value() -> None:
    rng = np.random.default_rng(0)
    u, other = rng.random((2, 48))
    blocks = [axis_coordinates(other, True)]
    costs = 8 * (logarithmic(u) - 0.2) ** 2 + other + 0.1 * rng.standard_normal(48)
    assert _scale_test.p_value(u, logarithmic(u), blocks, costs) <= 0.01
    v = rng.random(48)
    costs = 8 * (linear(v) - 0.6) ** 2 + other + 0.1 * rng.standard_normal(48)
    assert _scale_test.p_value(v, linear(v), blocks, costs) <= 0.01


@pytest.mark.parametrize("declared", ["linear", "log"])
@pytest.mark.parametrize("count", [12, 40])
def test_keeps_its_level_for_responses_that_are_smooth_on_the_scale_used(declared: str, count: int) -> None:
    wrong = []
    for seed in studies(60):
        rng = np.random.default_rng(seed)
        used = rng.random(count)
        other = logarithmic(used) if declared == "linear" else linear(used)
        costs = [8 * (used - rng.random()) ** 2, 3 * used, -3 * used, 0 * used][seed % 4]
        costs = costs + rng.choice([0.1, 0.5]) * rng.standard_normal(count)
        wrong.append(_scale_test.p_value(used, other, [], costs) <= 0.05)
    assert np.mean(wrong) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 60)


def test_unit_and_huge_values_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    u = rng.random(30)
    costs = (logarithmic(u) - 0.1) ** 2
    p = _scale_test.p_value(u, logarithmic(u), [], costs)
    costs[np.argmax(costs)] *= 1e12
    assert _scale_test.p_value(u, logarithmic(u), [], 1e6 * costs - 3) == p


def test_says_nothing_of_ties_few_values_and_missing_positions() -> None:
    u = np.linspace(0, 1, 20)
    assert _scale_test.p_value(u, logarithmic(u), [], np.ones(20)) == 1
    assert _scale_test.p_value(u[:5], logarithmic(u[:5]), [], u[:5]) == 1
    some = np.where(np.arange(20) % 2, u, np.nan)
    assert 0 < _scale_test.p_value(some, logarithmic(some), [], (u - 0.5) ** 2) <= 1
    assert _scale_test.spans_of_best_values(np.full(5, np.nan), u[:5], u[:5]) == (1, 1)


def test_room_is_what_the_best_span() -> None:
    u = np.linspace(0, 1, 41)
    low, wide = _scale_test.spans_of_best_values(u, logarithmic(u), u)
    assert low == pytest.approx(0.1)
    assert wide == pytest.approx(float(logarithmic(np.array([0.1]))[0]))
