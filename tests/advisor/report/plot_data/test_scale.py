"""Scales, ticks and limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from advisor.report.plot_data.scale import (
    AxisLimits,
    Scale,
    axis_limits_of_values,
    curve_axis_limits,
    objective_axis_limits,
    padded_axis_limits,
    tick_label,
)


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 8))
def test_linear_ticks_are_few_and_inside(low: float, span: float, most: int) -> None:
    if low + span <= low or span < abs(low) * 1e-9:
        return
    ticks = Scale(low, low + span, 0, 500).ticks(most)
    assert len(ticks) <= most + 2
    assert all(low - span * 1e-6 <= v <= low + span * (1 + 1e-6) for v, _ in ticks)


@settings(deadline=None)
@given(st.floats(1e-12, 1e6), st.floats(1.5, 1e12))
def test_log_ticks_are_inside_and_labelled_apart(low: float, ratio: float) -> None:
    ticks = Scale(low, low * ratio, 0, 500, log=True).ticks()
    assert 1 <= len(ticks) <= 9
    assert all(low * 0.999 <= v <= low * ratio * 1.001 for v, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("value", "label"), [(1e-4, "1e-4"), (0.003, "0.003"), (20, "20"), (1000, "1,000"), (1e6, "1e6"), (0, "0"), (-2, "-2")]
)
def test_tick_labels(value: float, label: str) -> None:
    assert tick_label(value) == label


def test_one_wild_value_does_not_flatten_the_rest() -> None:
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.2, 0.6, 100)
    limits = objective_axis_limits(np.append(errors, [1e12, np.nan, np.inf]), minimize=True)
    assert limits.low < errors.min()
    assert errors.max() <= limits.high < 1
    accuracies = objective_axis_limits(np.append(1 - errors, -1e6), minimize=False)
    assert accuracies.low > -1
    assert accuracies.high > (1 - errors).max()


def test_a_diverged_curve_does_not_flatten_the_rest() -> None:
    good = [np.linspace(2.3, 0.1, 50), np.linspace(2.4, 0.2, 50)]
    limits = curve_axis_limits(good, [*good, np.geomspace(2.3, 1e30, 50)])
    assert 2.4 <= limits.high < 5
    alone = curve_axis_limits([], [np.append(np.linspace(2.3, 4.0, 50), 1e30)])
    assert alone.high < 1e3


@pytest.mark.parametrize("values", [[1.0], [1.2, 1.1], [1.0, 5.0], [0.1, 9.0], [-1.0, 2.0, 3.0]])
def test_curves_of_few_values_are_not_clipped(values: list[float]) -> None:
    limits = curve_axis_limits([np.array(values)])
    assert limits.low < min(values) <= max(values) <= limits.high
    assert max(values) < limits.high or max(values) == 1.0


def test_a_spike_of_a_good_curve_is_shown() -> None:
    norms = np.ones(1000)
    norms[500] = 60.0
    assert curve_axis_limits([norms * np.linspace(0.9, 1.1, 1000)]).high > 60


def test_a_reverse_log_axis_gives_each_nine_the_same_width():
    scale = Scale(0.9, 0.999, 0, 100, reverse=True)
    assert [scale(v) for v in (0.9, 0.99, 0.999)] == pytest.approx([0, 50, 100])
    assert scale.can_represent(-3.0)
    assert not scale.can_represent(1.0)
    assert scale.ticks() == [(0.9, "0.9"), (0.99, "0.99"), (0.999, "0.999")]


@given(st.floats(1e-6, 5), st.floats(1.5, 1e5), st.integers(2, 8))
def test_reverse_ticks_are_inside_ordered_and_have_distinct_labels(left, factor, most):
    ticks = Scale(1 - left * factor, 1 - left, 0, 500, reverse=True).ticks(most)
    values = [value for value, _ in ticks]
    assert values == sorted(values)
    assert all(value < 1 for value in values)
    assert len({label for _, label in ticks}) == len(ticks)


def test_limits_include_all_values_with_a_place_on_the_scale():
    assert axis_limits_of_values([0.5, 0.99, 1.0, float("nan")], "reverse-log") == padded_axis_limits(
        0.5, 0.99, log=False, reverse=True
    )
    assert axis_limits_of_values([0.0, 1e-3, 1.0], "log") == padded_axis_limits(1e-3, 1.0, log=True)
    assert axis_limits_of_values([], "linear") == axis_limits_of_values([2.0], "reverse-log") == AxisLimits(0.0, 1.0, False)
    limits = axis_limits_of_values([0.9, 0.99], "reverse-log")
    assert limits.low < 0.9
    assert 0.99 < limits.high < 1


@pytest.mark.parametrize("minimize", [True, False])
def test_the_best_of_a_crowd_can_be_seen(minimize: bool) -> None:
    """Most errors are close to the optimum of 0.05, and a quarter of the trials learned little."""
    errors = np.append(np.geomspace(0.05, 0.09, 30), np.linspace(0.1, 0.9, 10))
    limits = objective_axis_limits(errors if minimize else 1 - errors, minimize=minimize)
    assert (limits.log, limits.reverse) == (minimize, not minimize)
    scale = limits.scale(0, 100)
    places = sorted(abs(scale(v) - scale(0.05 if minimize else 0.95)) for v in (errors if minimize else 1 - errors))
    assert places[len(places) // 2] >= 15
    assert places[-1] > 50


def test_a_crowd_with_negative_values_gets_room_by_leaving_out_the_worst() -> None:
    rewards = np.append(np.linspace(-1.0, 1.0, 30), np.linspace(-100.0, -20.0, 10))
    limits = objective_axis_limits(rewards, minimize=False)
    assert -60 < limits.low <= np.quantile(rewards, 0.25)
    assert limits.high > 1.0
    assert limits.count_values_outside(rewards) <= 10


@pytest.mark.parametrize(
    ("values", "low", "high"), [([0.0, 0.2, 0.5], 0.0, None), ([0.5, 0.7, 0.999], None, 1.0), ([-3.0, -1.0, 0.0], None, 0.0)]
)
def test_axes_end_where_values_are_impossible(values: list[float], low: float | None, high: float | None) -> None:
    for limits in (objective_axis_limits(np.array(values), minimize=True), curve_axis_limits([np.array(values)])):
        assert low is None or limits.low == low
        assert high is None or limits.high == high
        assert limits.low <= min(values) < max(values) <= limits.high
