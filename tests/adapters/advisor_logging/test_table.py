from __future__ import annotations

import math

from advisor import contract
from advisor_logging.table import MetricPoint, RowWindowReducer


def points_of(values: list[float]) -> dict[str, dict[int, float]]:
    windows = RowWindowReducer()
    points: list[MetricPoint] = []
    for step, value in enumerate(values):
        points += windows.add_row(step, 1000 + step, {"m": value})
    points += windows.close()
    found: dict[str, dict[int, float]] = {}
    for p in points:
        assert p.step not in found.setdefault(p.name, {})
        assert p.time_ms == 1000 + p.step
        found[p.name][p.step] = p.value
    return found


def test_every_step_is_kept_at_first_and_means_with_extremes_later() -> None:
    found = points_of([float(i) for i in range(1200)])
    assert list(found["m"])[: contract.DENSELY_LOGGED_STEPS] == list(range(contract.DENSELY_LOGGED_STEPS))
    assert found["m"][501] == 500.5
    assert found["m.min"][501] == 500
    assert found["m.max"][501] == 501
    assert found["m"][1003] == 1001.5
    assert len(found["m"]) == 500 + 250 + 50


def test_a_spike_stays_in_the_extremes() -> None:
    values = [1.0] * 9000
    values[8500] = 1e6
    assert max(points_of(values)["m.max"].values()) == 1e6


def test_what_is_not_finite_stays_visible() -> None:
    values = [1.0] * 600
    values[510], values[520], values[530], values[531] = math.nan, math.inf, math.nan, math.nan
    found = points_of(values)
    assert math.isnan(found["m"][511])
    assert (found["m.min"][511], found["m.max"][511]) == (1.0, 1.0)
    assert found["m"][521] == math.inf
    assert (found["m.min"][521], found["m.max"][521]) == (1.0, math.inf)
    assert math.isnan(found["m.min"][531])
    assert found["m"][533] == 1.0


def test_a_metric_that_is_missing_at_some_steps_is_the_mean_of_the_others() -> None:
    windows = RowWindowReducer()
    windows.add_row(500, 0, {"a": 1.0, "b": 3.0})
    windows.add_row(501, 0, {"a": 2.0})
    means = {p.name: p.value for p in windows.close()}
    assert (means["a"], means["b"]) == (1.5, 3.0)


def test_a_long_training_leaves_few_windows() -> None:
    windows = RowWindowReducer()
    count = sum(len(windows.add_row(step, 0, {"m": 0.0})) for step in range(100_000))
    assert count < 3 * 2500
