"""Which trials failed, and from which value on."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.stats import outliers


def test_a_sweep_that_falls_off_bit_by_bit_has_no_outliers() -> None:
    costs = np.linspace(0.1, 2.3, 12)  # the last one learned nothing
    fine = np.ones(12, dtype=np.bool_)
    assert not outliers.stuck_trials(costs, np.full(12, 2.3), fine, ~fine).any()


def test_stuck_trials_are_a_gap_away_from_those_that_learned() -> None:
    costs = np.array([-0.92, -0.91, -0.90, -0.74, -0.12, -0.12])
    fine = np.ones(6, dtype=np.bool_)
    found = outliers.stuck_trials(costs, np.full(6, -0.12), fine, ~fine)
    assert found.tolist() == [False, False, False, False, True, True]


def test_trials_at_chance_are_stuck_though_the_others_had_learned_most_by_their_first_evaluation() -> None:
    costs = np.array([0.020, 0.022, 0.027, 0.033, 0.062, 0.198, 0.891, 0.889, 0.893, 0.893])
    starts = np.array([0.060, 0.053, 0.070, 0.080, 0.120, 0.350, 0.891, 0.893, 0.898, 0.893])
    fine = np.ones(10, dtype=np.bool_)
    assert np.flatnonzero(outliers.stuck_trials(costs, starts, fine, ~fine)).tolist() == [6, 7, 8, 9]


def test_a_training_loss_that_ends_above_its_start_needs_no_gap() -> None:
    costs = np.linspace(0.1, 2.3, 12)
    fine, worse = np.ones(12, dtype=np.bool_), np.arange(12) >= 6
    assert np.flatnonzero(outliers.stuck_trials(costs, np.full(12, 2.3), fine, worse)).tolist() == [11]


def test_share_of_failures_has_a_probability() -> None:
    assert outliers.chance_of_failed_share(1, 1, 0.1) > 0.9
    assert outliers.chance_of_failed_share(0, 20, 0.1) < 0.1
    assert outliers.chance_of_failed_share(5, 20, 0.1) > outliers.chance_of_failed_share(3, 20, 0.1)


def test_separation_has_the_exact_p_value() -> None:
    u = np.linspace(0, 1, 8)[:, None]
    failed = np.arange(8) >= 6
    (region,) = outliers.find_failure_regions(u, failed, purity=0.8, sides=(("high",),))
    assert (region.side, region.failed, region.total) == ("high", 2, 2)
    assert region.edge == pytest.approx(6 / 7)
    assert region.inside == pytest.approx(5 / 7)
    assert region.p == pytest.approx(1 / 28)  # 8 choose 2


def test_the_best_trial_must_be_near() -> None:
    u = np.linspace(0, 1, 12)[:, None]
    failed = np.arange(12) >= 9
    near = np.array([[0.2, 0.3]])
    assert outliers.find_failure_regions(u, failed, purity=0.8, best=8, near=near)[0].p < 0.05
    assert outliers.find_failure_regions(u, failed, purity=0.8, best=2, near=near) == []


def test_one_failure_in_five_next_to_the_best_is_one_in_twenty() -> None:
    u = np.arange(5.0)[:, None]
    (region,) = outliers.find_failure_regions(
        u, np.arange(5) == 4, purity=0.8, best=3, near=np.array([[0.6, 1.0]]), sides=(("high",),)
    )
    assert region.p == pytest.approx(1 / 20)


def test_equal_values_are_never_parted() -> None:
    u = np.array([0.0, 0, 1, 1, 2, 2])[:, None]
    failed = np.array([False, False, False, True, True, True])
    high = [r for r in outliers.find_failure_regions(u, failed) if r.side == "high"]
    assert high[0].edge in (1, 2)
    assert high[0].total in (2, 4)


def test_nothing_to_place() -> None:
    u = np.arange(4.0)[:, None]
    assert outliers.find_failure_regions(u, np.zeros(4, dtype=np.bool_)) == []
    assert outliers.find_failure_regions(u, np.ones(4, dtype=np.bool_)) == []
    assert outliers.find_failure_regions(np.full((4, 1), np.nan), np.arange(4) > 1) == []
