"""Which trials failed, and from which value on."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.stats import outliers


def test_share_of_failures_has_a_probability() -> None:
    assert outliers.chance_of_failed_share(1, 1, 0.1) > 0.9
    assert outliers.chance_of_failed_share(0, 20, 0.1) < 0.1
    assert outliers.chance_of_failed_share(5, 20, 0.1) > outliers.chance_of_failed_share(3, 20, 0.1)


def test_separation_has_the_exact_p_value() -> None:
    u = np.linspace(0, 1, 8)[:, None]
    failed = np.arange(8) >= 6
    (region,) = outliers.find_failure_regions(u, failed, purity=0.8, sides=(("high",),))
    assert (region.side, region.failed_count, region.trial_count) == ("high", 2, 2)
    assert region.edge_position == pytest.approx(6 / 7)
    assert region.nearest_outside_position == pytest.approx(5 / 7)
    assert region.p_value == pytest.approx(1 / 28)  # 8 choose 2


def test_the_best_trial_must_be_near() -> None:
    u = np.linspace(0, 1, 12)[:, None]
    failed = np.arange(12) >= 9
    near = np.array([[0.2, 0.3]])
    assert outliers.find_failure_regions(u, failed, purity=0.8, best=8, near=near)[0].p_value < 0.05
    assert outliers.find_failure_regions(u, failed, purity=0.8, best=2, near=near) == []


def test_one_failure_in_five_next_to_the_best_is_one_in_twenty() -> None:
    u = np.arange(5.0)[:, None]
    (region,) = outliers.find_failure_regions(
        u, np.arange(5) == 4, purity=0.8, best=3, near=np.array([[0.6, 1.0]]), sides=(("high",),)
    )
    assert region.p_value == pytest.approx(1 / 20)


def test_equal_values_are_never_parted() -> None:
    u = np.array([0.0, 0, 1, 1, 2, 2])[:, None]
    failed = np.array([False, False, False, True, True, True])
    high = [r for r in outliers.find_failure_regions(u, failed) if r.side == "high"]
    assert high[0].edge_position in (1, 2)
    assert high[0].trial_count in (2, 4)


def test_nothing_to_place() -> None:
    u = np.arange(4.0)[:, None]
    assert outliers.find_failure_regions(u, np.zeros(4, dtype=np.bool_)) == []
    assert outliers.find_failure_regions(u, np.ones(4, dtype=np.bool_)) == []
    assert outliers.find_failure_regions(np.full((4, 1), np.nan), np.arange(4) > 1) == []


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_an_infinite_position_is_a_missing_one(infinite: float) -> None:
    positions, failed = np.linspace(0, 1, 12)[:, None], np.arange(12) < 4
    missing = positions.copy()
    missing[3], positions[3] = np.nan, infinite
    assert outliers.find_failure_regions(positions, failed) == outliers.find_failure_regions(missing, failed)


def test_failures_at_both_ends_are_clearer_together() -> None:
    u = np.linspace(0, 1, 30)
    failed = (u < 0.08) | (u > 0.92)
    regions = outliers.find_failures_at_both_ends(u, failed)
    assert regions is not None
    low, high = regions
    assert (low.side, low.failed_count, high.side, high.failed_count) == ("low", 3, "high", 3)
    assert low.p_value == high.p_value < 0.001 < outliers.find_failure_regions(u[:, None], failed)[0].p_value
    assert outliers.find_failures_at_both_ends(u, u > 0.92) is None
    assert outliers.find_failures_at_both_ends(u, u > 2) is None
