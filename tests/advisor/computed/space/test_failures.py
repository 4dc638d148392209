"""Which trials failed, and how."""

from __future__ import annotations

import numpy as np
from studies import make_study

from advisor.computed.space import failures


def test_kinds_of_failure_are_told_apart() -> None:
    curves = [[2.0, 1.0], [2.0, np.nan], [2.0, 1.1], [2.0, 1.2], [2.0, 2.0], [2.0, 1.3], None, [2.0], [2.0, 0.9]]
    status = [
        "complete",
        "diverged",
        "complete",
        "complete",
        "complete",
        "infeasible",
        "no_data",
        "running",
        "complete",
    ]
    params = [{"lr": 0.1 * (i + 1)} for i in range(len(curves))]
    found = failures.failures(make_study(params, {"val/loss": curves}, status=status))
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
        [{"lr": 0.1 * (i + 1)} for i in range(6)],
        {"val/loss": objective, "train/loss": [falling] * 4 + [idle, rising]},
    )
    assert np.flatnonzero(failures.failures(study).stuck).tolist() == [5]
