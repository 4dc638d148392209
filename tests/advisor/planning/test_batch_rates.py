"""A learning rate has room where the trials with the next study's batch size ask for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from studies import make_study

from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import base
from advisor.planning.batch_rates import with_wider_rate_range

SPACE = {"batch_size": Parameter(type="int", low=32, high=1024, scale="log"), "lr": Parameter(low=1e-3, high=0.05, scale="log")}


def study(trials: Sequence[tuple[int, float, float]]) -> Study:
    """Return the study of trials (batch size, learning rate, cost)."""
    params = [{"batch_size": size, "lr": rate} for size, rate, _ in trials]
    return make_study(params, {"val/loss": [[2.0, 1.0, cost] for *_, cost in trials]}, space=SPACE)


def of_1024(shown: Study) -> StudySpec:
    spec = base(shown).with_parameter("batch_size", Parameter(role="fixed", type="int", value=1024))
    return with_wider_rate_range(shown, spec.model_copy(update={"goal": "Narrow lr: 0.001 to 0.05"}))


SMALL = [(32, 0.001, 0.5), (32, 0.002, 0.4), (64, 0.004, 0.5), (64, 0.03, 0.9)]


def test_the_range_reaches_half_a_decade_beyond_the_best_of_its_size_if_that_is_the_outermost() -> None:
    spec = of_1024(study([*SMALL, (1024, 0.003, 0.9), (900, 0.01, 0.7), (1000, 0.04, 0.3)]))
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (1e-3, 0.13)
    assert spec.goal == "Search higher lr: 0.001 to 0.13"
    assert "highest" in (spec.parameters["lr"].why or "")


@pytest.mark.parametrize(
    "large",
    [
        [(1024, 0.003, 0.9), (1000, 0.04, 0.3)],
        [(1024, 0.003, 0.9), (900, 0.02, 0.3), (1000, 0.04, 0.7)],
        [(256, 0.003, 0.9), (300, 0.02, 0.7), (400, 0.04, 0.3)],
    ],
    ids=["two trials near it", "a worse one further out", "other sizes"],
)
def test_otherwise_the_range_stays(large: list[tuple[int, float, float]]) -> None:
    spec = of_1024(study([*SMALL, *large]))
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (1e-3, 0.05)
    assert spec.goal == "Narrow lr: 0.001 to 0.05"


def test_a_better_trial_with_a_lower_rate_and_a_larger_batch_keeps_the_range() -> None:
    large = [(700, 0.003, 0.9), (900, 0.01, 0.7), (1000, 0.04, 0.3), (2048, 0.02, 0.2)]
    spec = of_1024(study([*SMALL, *large]))
    assert (spec.parameters["lr"].low, spec.parameters["lr"].high) == (1e-3, 0.05)
