"""How far to move the end of a range."""

from __future__ import annotations

import math

import pytest

from advisor.model.space import Domain, RangeSide
from advisor.stats import widening


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
    name: str, domain: Domain, side: RangeSide, expected: tuple[float, float] | None
) -> None:
    assert widening.widen_range(name, domain, side, 0.0) == (pytest.approx(expected) if expected else None)


def test_widen_is_bounded_however_far_the_trend_goes() -> None:
    wide = Domain(low=1e-8, high=1e-1, scale="log")
    assert widening.widen_range("learning_rate", wide, "high", math.inf) == pytest.approx((1e-8, 1))
    assert widening.widen_range("x", Domain(low=0.0, high=1.0), "high", math.inf) == (0, 1.5)
