"""Trainings that stopped at a target value of the objective."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from studies import make_study, verdict

from advisor.model.study import Study


def to_target(paces: Sequence[float], target: float = 0.4, longest: int = 60) -> Study:
    """Trials with falling losses that stop at the first evaluation below the target, or after the longest training."""
    curves = []
    for pace in paces:
        values = 0.3 + 0.7 * np.exp(-pace * np.arange(longest) / 10)
        below = np.flatnonzero(values < target)
        curves.append(values[: int(below[0]) + 1] if len(below) else values)
    return make_study([{"lr": 0.01 * (i + 1)} for i in range(len(paces))], {"val/loss": curves})


def test_trials_that_stop_at_a_target_are_compared_by_their_steps() -> None:
    study = to_target([0.5, 0.7, 1.0, 1.5])
    assert study.target == pytest.approx(0.4, abs=0.02)
    (warning,) = (w for w in study.warnings if w.startswith("Training stopped when val/loss reached"))
    assert "trial-3 needed the fewest, 1,400; trial-0 needed 4,000." in warning
    judged = verdict("step-position", study)
    assert (judged.status, "equal by design" in judged.reason) == ("not-assessed", True)


def test_a_trial_that_never_reached_it_had_the_time() -> None:
    assert to_target([0.1, 0.5, 0.7, 1.0]).target is not None


def test_trainings_of_one_length_or_cut_anywhere_have_no_target() -> None:
    assert to_target([0.5, 0.7, 1.0, 1.5], target=0.0).target is None
    rng = np.random.default_rng(2)
    for _ in range(40):
        curves = [1 + np.exp(-np.arange(n) / 10) + 0.01 * rng.normal(size=n) for n in rng.integers(20, 60, 6)]
        assert make_study([{"lr": 0.1 * i} for i in range(1, 7)], {"val/loss": curves}).target is None


@pytest.mark.parametrize("facts", [{}, {"max_train_steps": True}])
def test_equal_epochs_at_several_batch_sizes_have_no_target(facts: dict[str, bool]) -> None:
    rng = np.random.default_rng(3)
    sizes = [32, 64, 128, 256] * 3
    for epochs in (3, 5, 10):
        ends = [0.5 + 0.1 * rng.random() for _ in sizes]
        curves = [end + 0.5 * np.linspace(1, 0, epochs) for end in ends]
        steps = [np.arange(1, epochs + 1) * (12_800 // size) for size in sizes]
        made = make_study(
            [{"lr": 0.01 * (i + 1), "batch_size": size} for i, size in enumerate(sizes)],
            {"val/loss": curves},
            steps={"val/loss": steps},
            tags=[{"max_train_steps": str(at[-1])} if facts else {} for at in steps],
        )
        assert made.target is None
