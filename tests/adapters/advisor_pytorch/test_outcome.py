from __future__ import annotations

import math

import pytest

from advisor_pytorch.outcome import RunOutcome


@pytest.mark.parametrize(
    ("losses", "objective", "steps", "status"),
    [
        ([1.0], [0.5], 10, "complete"),
        ([1.0], [0.5], 9, "stopped"),
        ([math.nan], [0.5], 9, "diverged"),
        ([1.0], [0.5, math.inf], 10, "diverged"),
        ([1.0], [math.nan, 0.5], 10, "complete"),
        ([1.0], [], 10, "no_data"),
    ],
)
def test_how_a_trial_ended(losses: list[float], objective: list[float], steps: int, status: str) -> None:
    outcome = RunOutcome("val", "minimize")
    for i, value in enumerate(losses):
        outcome.update(i, "train/loss", value)
    for i, value in enumerate(objective):
        outcome.update(i, "val", value)
    assert outcome.final_status(steps, 10) == status
