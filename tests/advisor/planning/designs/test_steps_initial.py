"""The plan `steps-initial`: the grid of learning rates that `advisor init --find-steps` writes."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.model.errors import AdvisorError
from advisor.model.spec import Objective, Parameter, StudySpec
from advisor.model.spec_yaml import format_study_file, parse_study_file
from advisor.planning.designs.steps_initial import initial_rate_sweep
from advisor.planning.sampling.halton import draw_trials

AIM = Objective(metric="val/loss", direction="minimize")
RATE = Parameter(low=1e-4, high=1.0, scale="log")


def first(**parameters: Parameter) -> StudySpec:
    return StudySpec(study="s", objective=AIM, parameters={"learning_rate": RATE, **parameters}, trials=20)


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("dropout", Parameter(choices=(0.1, 0.3)), 0.0),
        ("dropout", Parameter(role="fixed", value=0.1), 0.0),
        ("weight_decay", Parameter(low=1e-6, high=1e-2, scale="log"), 0.0),
        ("use_dropout", Parameter(type="bool"), False),
        ("use_dropout", Parameter(role="fixed", value=True), False),
        ("label_smoothing", Parameter(choices=("weak", "none")), "none"),
        ("width", Parameter(choices=(64, 128)), 64),
    ],
)
def test_regularisation_is_off_in_the_grid_and_the_rest_is_held(name: str, parameter: Parameter, value: Any) -> None:
    spec = initial_rate_sweep(first(**{name: parameter}), 1000)
    held = spec.parameters[name].value
    assert held == value
    assert isinstance(held, bool) == isinstance(value, bool)
    assert parse_study_file(format_study_file(spec)) == spec


@pytest.mark.parametrize("high", [0.1001, 0.12, 0.3])
def test_learning_rates_close_together_are_different_ones(high: float) -> None:
    rate = Parameter(low=0.1, high=high, scale="log")
    spec = initial_rate_sweep(first(learning_rate=rate), 1000)
    drawn = [t["learning_rate"] for t in draw_trials(spec, spec.trials or 0)]
    assert len(set(drawn)) == len(drawn) == 8
    assert parse_study_file(format_study_file(spec)) == spec


def test_a_grid_of_less_than_eight_numbers_has_fewer_trials() -> None:
    rate = Parameter(low=0.1, high=0.1 + 1e-12, scale="log")
    spec = initial_rate_sweep(first(learning_rate=rate), 1000)
    choices = spec.parameters["learning_rate"].choices or ()
    assert spec.trials == len(choices) == len(set(choices))
    assert parse_study_file(format_study_file(spec)) == spec


@pytest.mark.parametrize(
    "rate", [Parameter(role="fixed", value=0.1), Parameter(choices=(0.1, 0.01)), Parameter(low=0.0, high=0.1)]
)
def test_without_a_range_of_learning_rates_there_is_nothing_to_try(rate: Parameter) -> None:
    with pytest.raises(AdvisorError, match=r"--tune learning_rate=1e-4\.\.1:log"):
        initial_rate_sweep(first(learning_rate=rate), 100)
