"""Which trials failed, and how."""

from __future__ import annotations

import numpy as np
import pytest
from policy_studies import policy_study
from studies import make_study

from advisor.computed.space import failures


def test_kinds_of_failure_are_told_apart() -> None:
    curves = [[2.0, 1.0], [2.0, np.nan], [2.0, 1.1], [2.0, 1.2], [2.0, 2.0], [2.0, 1.3], None, [2.0], [2.0, 0.9]]
    status = ["complete", "diverged", "complete", "complete", "complete", "infeasible", "no_data", "running", "complete"]
    params = [{"lr": 0.1 * (i + 1)} for i in range(len(curves))]
    found = failures.failure_masks(make_study(params, {"val/loss": curves}, status=status))
    assert np.flatnonzero(found.diverged).tolist() == [1]
    assert np.flatnonzero(found.crashed).tolist() == [5]
    assert np.flatnonzero(found.stuck).tolist() == [4]


def test_a_training_loss_that_rises_is_a_failure_and_one_that_idles_is_none() -> None:
    falling = [2.3 - 0.05 * i for i in range(20)]
    idle = [2.3 + 0.01 * (i % 3) for i in range(20)]
    rising = [2.3 + 0.2 * i for i in range(20)]
    # The objective of the last three falls off bit by bit, so that no gap sets them apart.
    objective = [[2.3, c] for c in (1.0, 1.4, 1.8, 2.2, 2.3, 2.3)]
    study = make_study(
        [{"lr": 0.1 * (i + 1)} for i in range(6)], {"val/loss": objective, "train/loss": [falling] * 4 + [idle, rising]}
    )
    assert np.flatnonzero(failures.failure_masks(study).stuck).tolist() == [5]


SWEEP = np.linspace(0.1, 2.3, 12)  # falls off bit by bit; the last one learned nothing
LEARNED_EARLY = [0.020, 0.022, 0.027, 0.033, 0.062, 0.198, 0.891, 0.889, 0.893, 0.893]


@pytest.mark.parametrize(
    ("costs", "starts", "worse", "stuck"),
    [
        (SWEEP, 2.3, 12, []),
        ([-0.92, -0.91, -0.90, -0.74, -0.12, -0.12], -0.12, 6, [4, 5]),
        (LEARNED_EARLY, [0.060, 0.053, 0.070, 0.080, 0.120, 0.350, 0.891, 0.893, 0.898, 0.893], 10, [6, 7, 8, 9]),
        (SWEEP, 2.3, 6, [11]),
    ],
    ids=["no gap", "a gap", "most learned before the first evaluation", "training losses that end above their start"],
)
def test_stuck_trials_are_a_gap_away_from_the_others_or_end_with_a_worse_training_loss(
    costs: list[float], starts: float | list[float], worse: int, stuck: list[int]
) -> None:
    """worse: the first trial whose training loss ends above its start."""
    every = np.ones(len(costs), dtype=np.bool_)
    found = failures.stuck_trials(np.array(costs), starts * every, every, np.arange(len(costs)) >= worse)
    assert np.flatnonzero(found).tolist() == stuck


def test_a_policy_that_learned_before_its_first_evaluation_is_not_stuck() -> None:
    late = np.linspace(0.3, 0.9, 100)
    early = np.where(np.arange(100) < 5, 0.3, 0.5)
    assert not failures.failure_masks(policy_study([late] * 5 + [early])).stuck.any()
    assert failures.failure_masks(policy_study([late] * 5 + [np.full(100, 0.5)])).stuck.tolist() == [False] * 5 + [True]
