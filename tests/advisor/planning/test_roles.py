from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planning_studies import found
from studies import make_study

from advisor.model.change import SetRange
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.planning import plan
from advisor.planning.base import base

RATE = Parameter(low=1e-4, high=1e-1, scale="log")


def study(values: list[Any], name: str = "depth", space: dict[str, Parameter] | None = None, **more: Any) -> Study:
    """Trials that are the better the later they come."""
    rng = np.random.default_rng(0)
    params = [{"lr": 10 ** rng.uniform(-4, -1), name: v, **more} for v in values]
    return make_study(params, {"val/loss": [[3.0, 2 - i / len(values)] for i in range(len(values))]}, space=space)


def test_an_inferred_architecture_is_compared_in_its_values_or_their_range() -> None:
    """Six trials of three values, each with another learning rate, do not show which value is best."""
    depth = base(study([2, 4, 8, 2, 4, 8])).parameters["depth"]
    assert (depth.role, depth.choices) == ("scientific", (2, 4, 8))
    assert "cost" in (depth.why or "")
    many = base(study([2, 3, 5, 6, 7, 8])).parameters["depth"]
    assert (many.role, many.low, many.high) == ("scientific", 2, 8)


def test_a_declared_architecture_is_compared_in_its_range() -> None:
    made = base(study([2, 4, 8, 2], space={"lr": RATE, "depth": Parameter(type="int", low=2, high=8)}))
    depth = made.parameters["depth"]
    assert (depth.role, depth.low, depth.high) == ("scientific", 2, 8)


def test_an_architecture_that_is_all_that_was_varied_is_the_question() -> None:
    params = [{"hidden_size": 32 * 2**i} for i in range(4)]
    made = base(make_study(params, {"val/loss": [[2.0, 1.0 - 0.1 * i] for i in range(4)]}))
    assert made.parameters["hidden_size"].role == "scientific"


def test_a_learning_rate_and_a_strength_stay_as_they_are() -> None:
    made = base(study([0.1, 0.2, 0.3, 0.15], name="dropout"))
    assert (made.parameters["dropout"].role, made.parameters["dropout"].low) == ("nuisance", 0.1)
    assert made.parameters["lr"].role == "nuisance"


@pytest.mark.parametrize(("round_number", "kept"), [(1, True), (2, False)])
def test_the_reason_of_the_first_study_stays_as_long_as_the_range(round_number: int, kept: bool) -> None:
    source = "how strongly the model is kept near the reference (arXiv:2305.18290)"
    beta = Parameter(low=0.01, high=0.5, scale="log", why=source)
    made = study([0.1, 0.2, 0.3, 0.15], name="beta", space={"lr": RATE, "beta": beta})
    made = replace(made, spec=made.spec.model_copy(update={"round": round_number}))
    first = base(made)
    assert (first.parameters["beta"].why == f"{source}; unchanged since the last round") == kept
    again = base(replace(made, spec=first)).parameters["beta"]
    assert again.why == first.parameters["beta"].why


def test_the_length_of_training_is_never_searched() -> None:
    space = {"lr": RATE, "epochs": Parameter(type="int", low=5, high=50)}
    made = base(study([10, 20, 40, 30], name="epochs", space=space))
    assert (made.parameters["epochs"].role, made.parameters["epochs"].value) == ("fixed", 30)


@pytest.mark.parametrize(
    ("name", "space", "new", "allowed"),
    [
        ("depth", None, (2, 16), False),
        ("batch_size", None, (8, 1024), False),
        ("depth", Parameter(type="int", low=2, high=8), (2, 16), False),
        ("depth", Parameter(type="int", low=2, high=8), (4, 8), True),
        ("warmup_steps", None, (1, 16), True),
    ],
)
def test_no_finding_widens_an_architecture_or_a_batch_size(
    name: str, space: Parameter | None, new: tuple[float, float], allowed: bool
) -> None:
    declared = None if space is None else {"lr": RATE, name: space}
    change = SetRange(parameter=name, low=new[0], high=new[1], scale="linear", why="because")
    made = plan(study([2, 4, 8, 2, 4, 8], name=name, space=declared), [found("r", "boundary", change)])
    ranges = [(p.low, p.high) for s in made.specs if (p := s.parameters[name]).numeric]
    assert (new in ranges) == allowed
    assert allowed or any("cost" in d.reason or "throughput" in d.reason for d in made.deferred)
