"""Intervals between events, in steps or in seconds."""

from __future__ import annotations

import numpy as np
import pytest

from advisor_rules.pipeline._evaluation_gaps import read_event_intervals


def test_a_regular_rhythm_with_a_start_and_an_end_off_it() -> None:
    found = read_event_intervals(np.array([1, *range(50, 1001, 50), 1013.0]), 0.05)
    assert found is not None
    assert (found.median_interval, found.shortest_interval, found.longest_interval, found.off, found.is_monotonic) == (
        50,
        50,
        50,
        0,
        True,
    )


def test_events_left_out_are_on_the_grid() -> None:
    kept = np.delete(np.arange(0, 5000, 100.0), [3, 4, 9, 17, 25, 26, 27, 40])
    found = read_event_intervals(kept, 0.05)
    assert found is not None
    assert found.off == 0
    assert not found.is_monotonic


def test_multiples_of_the_shortest_interval_are_off_if_most_are_missing() -> None:
    found = read_event_intervals(np.cumsum(np.tile([50.0, 250.0, 150.0, 300.0, 100.0], 10)), 0.05)
    assert found is not None
    assert found.off > 0.5
    half = read_event_intervals(np.cumsum(np.tile([50.0, 150.0, 100.0, 100.0], 10)), 0.05)
    assert half is not None
    assert half.off == 0


def test_intervals_that_vary_are_off() -> None:
    found = read_event_intervals(np.cumsum(np.tile([90.0, 100.0, 117.0], 10)), 0.05)
    assert found is not None
    assert found.off == pytest.approx(2 / 3, abs=0.05)


def test_whole_numbers_may_be_off_by_one() -> None:
    steps = np.rint(3.7 * np.arange(30))
    regular, strict = read_event_intervals(steps, 0.05, slack=1.0), read_event_intervals(steps, 0.05)
    assert regular is not None
    assert strict is not None
    assert (regular.off, strict.off > 0.2) == (0, True)


@pytest.mark.parametrize("times", [np.arange(10.0), np.full(40, np.nan), np.empty(0)])
def test_too_few_or_unknown(times: np.ndarray) -> None:
    assert read_event_intervals(times, 0.05) is None
