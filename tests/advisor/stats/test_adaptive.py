"""Whether a sampler learned."""

from __future__ import annotations

import numpy as np

from advisor.stats import adaptive


def climb(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    points = [rng.random(3) for _ in range(8)]
    costs = [float(((u - 0.3) ** 2).sum()) for u in points]
    while len(points) < count:
        u = np.clip(points[int(np.argmin(costs))] + 0.1 * rng.standard_normal(3), 0, 1)
        points.append(u)
        costs.append(float(((u - 0.3) ** 2).sum()))
    return np.array(points), np.array(costs)


def test_sees_points_that_follow_the_best() -> None:
    rng = np.random.default_rng(0)
    assert np.mean([adaptive.p_value_of_adaptivity(*climb(rng, 40)) <= 0.05 for _ in range(10)]) >= 0.9


def test_keeps_its_level_for_random_and_clumped_points_and_sweeps() -> None:
    rng = np.random.default_rng(1)
    seen = [adaptive.p_value_of_adaptivity(rng.random((30, 3)) ** 2, rng.random(30)) <= 0.05 for _ in range(100)]
    assert np.mean(seen) <= 0.1
    sweep = np.linspace(0, 1, 30)[:, None]
    assert adaptive.p_value_of_adaptivity(sweep, np.abs(sweep[:, 0] - 0.5)) == 1


def test_copes_with_failures_missing_axes_and_few_points() -> None:
    points, costs = climb(np.random.default_rng(2), 40)
    points[::3, 0], costs[::4] = np.nan, np.nan
    assert 0 <= adaptive.p_value_of_adaptivity(points, costs) <= 1
    assert adaptive.p_value_of_adaptivity(points[:5], costs[:5]) == 1
    assert adaptive.p_value_of_adaptivity(np.full((20, 2), np.nan), np.zeros(20)) == 1


def test_an_infinite_position_is_a_missing_one() -> None:
    points, costs = climb(np.random.default_rng(3), 14)
    missing = points.copy()
    missing[3, 0], points[3, 0] = np.nan, np.inf
    assert adaptive.p_value_of_adaptivity(points, costs) == adaptive.p_value_of_adaptivity(missing, costs)
