"""Which trials failed, and how."""

from __future__ import annotations

import numpy as np
from studies import make_study

from advisor.readings import failures


def test_kinds_of_failure_are_told_apart() -> None:
    curves = [[2.0, 1.0], [2.0, np.nan], [2.0, 1.1], [2.0, 1.2], [2.0, 2.0], [2.0, 1.3], None, [2.0]]
    status = ["complete", "diverged", "complete", "complete", "complete", "infeasible", "no_data", "running"]
    params = [{"lr": 0.1 * (i + 1)} for i in range(len(curves))]
    found = failures.failures(make_study(params, {"val/loss": curves}, status=status))
    assert np.flatnonzero(found.diverged).tolist() == [1]
    assert np.flatnonzero(found.crashed).tolist() == [5]
    assert np.flatnonzero(found.stuck).tolist() == [4]
