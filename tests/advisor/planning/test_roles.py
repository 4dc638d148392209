from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planning_studies import found
from studies import make_study

from advisor.computed.batch import throughput
from advisor.model.change import SetRange
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.planning import plan
from advisor.planning.base import initial_draft
from advisor.planning.roles import MEASURE_THROUGHPUT_ADVICE

RATE = Parameter(low=1e-4, high=1e-1, scale="log")


def study(values: list[Any], name: str = "depth", space: dict[str, Parameter] | None = None, **more: Any) -> Study:
    """Trials that are the better the later they come."""
    rng = np.random.default_rng(0)
    params = [{"lr": 10 ** rng.uniform(-4, -1), name: v, **more} for v in values]
    return make_study(params, {"val/loss": [[3.0, 2 - i / len(values)] for i in range(len(values))]}, space=space)


def test_an_inferred_architecture_is_compared_in_its_values_or_their_range() -> None:
    """Six trials of three values, each with another learning rate, do not show which value is best."""
    depth = initial_draft(study([2, 4, 8, 2, 4, 8])).parameters["depth"]
    assert (depth.role, depth.choices) == ("scientific", (2, 4, 8))
    assert "cost" in (depth.why or "")
    many = initial_draft(study([2, 3, 5, 6, 7, 8])).parameters["depth"]
    assert (many.role, many.low, many.high) == ("scientific", 2, 8)


def test_a_declared_architecture_is_compared_in_its_range() -> None:
    made = initial_draft(study([2, 4, 8, 2], space={"lr": RATE, "depth": Parameter(type="int", low=2, high=8)}))
    depth = made.parameters["depth"]
    assert (depth.role, depth.low, depth.high) == ("scientific", 2, 8)


def test_an_architecture_that_is_all_that_was_varied_is_the_question() -> None:
    params = [{"hidden_size": 32 * 2**i} for i in range(4)]
    made = initial_draft(make_study(params, {"val/loss": [[2.0, 1.0 - 0.1 * i] for i in range(4)]}))
    assert made.parameters["hidden_size"].role == "scientific"


def test_a_learning_rate_and_a_strength_stay_as_they_are() -> None:
    made = initial_draft(study([0.1, 0.2, 0.3, 0.15], name="dropout"))
    assert (made.parameters["dropout"].role, made.parameters["dropout"].low) == ("nuisance", 0.1)
    assert made.parameters["lr"].role == "nuisance"


@pytest.mark.parametrize(("round_number", "kept"), [(1, True), (2, False)])
def test_the_reason_of_the_first_study_stays_as_long_as_the_range(round_number: int, kept: bool) -> None:
    source = "how strongly the model is kept near the reference (arXiv:2305.18290)"
    beta = Parameter(low=0.01, high=0.5, scale="log", why=source)
    made = study([0.1, 0.2, 0.3, 0.15], name="beta", space={"lr": RATE, "beta": beta})
    made = replace(made, spec=made.spec.model_copy(update={"round": round_number}))
    first = initial_draft(made)
    assert (first.parameters["beta"].why == f"{source}; unchanged since the last round") == kept
    again = initial_draft(replace(made, spec=first)).parameters["beta"]
    assert again.why == first.parameters["beta"].why


def test_the_length_of_training_is_never_searched() -> None:
    space = {"lr": RATE, "epochs": Parameter(type="int", low=5, high=50)}
    made = initial_draft(study([10, 20, 40, 30], name="epochs", space=space))
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


RANGE = Parameter(type="int", low=16, high=256, scale="log")


def batch_study(sizes: list[int], best: int, parameter: Parameter = RANGE, speed: Any = None, **more: Any) -> Study:
    params = [{"lr": 0.01 * (i + 1), "batch_size": size} for i, size in enumerate(sizes)]
    curves = {"val/loss": [[2.0, 0.5 if i == best else 1 + 0.01 * i] for i in range(len(sizes))]}
    if speed is not None:
        rng = np.random.default_rng(0)
        curves["train/examples_per_s"] = [speed(s) * np.exp(0.01 * rng.standard_normal(30)) for s in sizes]
    space = {"lr": Parameter(low=0.01, high=0.2, scale="log"), "batch_size": parameter}
    return make_study(params, curves, space=space, **more)


def test_a_range_becomes_the_power_of_two_next_to_the_best_trials() -> None:
    made = initial_draft(batch_study([17, 65, 110, 185, 230, 90], best=2))
    assert (made.parameters["batch_size"].role, made.parameters["batch_size"].value) == ("fixed", 64)
    assert "110, as a power of two" in (made.parameters["batch_size"].why or "")
    assert MEASURE_THROUGHPUT_ADVICE in made.notes


@pytest.mark.parametrize(("tags", "size"), [({}, 128), ({"step_unit": "epoch"}, 32), (None, 32)])
def test_at_equally_many_epochs_the_best_trial_decides(tags: dict[str, str] | None, size: int) -> None:
    sizes = [32, 64, 128, 32, 64, 128]
    planned = [{"max_train_steps": str(-(-5000 // s))} if tags is None else tags for s in sizes]
    made = initial_draft(batch_study(sizes, best=0, tags=planned))
    assert made.parameters["batch_size"].value == size
    assert ("equally many epochs" in (made.parameters["batch_size"].why or "")) == (size == 32)


def test_a_listed_size_stays_as_it_is() -> None:
    made = initial_draft(batch_study([24, 48, 24, 48, 24, 48], best=1, parameter=Parameter(type="int", choices=(24, 48))))
    assert made.parameters["batch_size"].value == 48


def test_the_throughput_decides_where_it_is_known() -> None:
    made = initial_draft(batch_study([32, 64, 128, 32, 64, 128], best=0, speed=lambda size: 100.0 * size))
    assert made.parameters["batch_size"].value == 128
    assert "throughput" in (made.parameters["batch_size"].why or "")
    assert not any("batch_size_sweep" in note for note in made.notes)


def test_no_size_that_ran_out_of_memory_is_taken() -> None:
    tags = [{"error": "out of memory"} if size == 128 else {} for size in (100, 128, 60, 30)]
    status = ["infeasible" if size == 128 else "complete" for size in (100, 128, 60, 30)]
    made = initial_draft(batch_study([100, 128, 60, 30], best=0, tags=tags, status=status))
    assert made.parameters["batch_size"].value == 64


def test_compared_sizes_are_a_list_of_powers_of_two() -> None:
    made = initial_draft(batch_study([17, 65, 110, 185], best=2, parameter=RANGE.model_copy(update={"role": "scientific"})))
    p = made.parameters["batch_size"]
    assert (p.role, p.choices) == ("scientific", (16, 32, 64, 128, 256))
    assert made.trials == 5


def test_limits_stay_and_words_are_kept() -> None:
    limited = Parameter(type="int", low=16, high=100, scale="log", limits=(16, 100))
    made = initial_draft(batch_study([17, 65, 90, 30], best=2, parameter=limited))
    assert (made.parameters["batch_size"].value, made.parameters["batch_size"].limits) == (64, (16, 100))
    words = Parameter(choices=("auto", "full"))
    params = [{"lr": 0.1 * (i + 1), "batch_size": ("auto", "full")[i % 2]} for i in range(4)]
    curves = {"val/loss": [[2.0, 1.0 + i] for i in range(4)]}
    made = initial_draft(make_study(params, curves, space={"lr": Parameter(low=0.01, high=1.0), "batch_size": words}))
    assert made.parameters["batch_size"].value == "auto"


def test_the_throughput_of_trials_that_wait_for_data_decides_nothing() -> None:
    made = batch_study([32, 64, 128, 32, 64, 128], best=0, speed=lambda size: 100.0 * size)
    assert throughput.recommended_batch_size(made, "batch_size") == 128
    step = np.full((6, 100), 0.02)
    metrics = {"train/step_time_s": step, "train/data_wait_s": 0.9 * step}
    params = [dict(t.params) for t in made.trials]
    curves = {"val/loss": [[2.0, 1.0]] * 6, "train/examples_per_s": [[3200.0] * 30] * 6, **metrics}
    waits = make_study(params, curves, every=1)
    assert throughput.recommended_batch_size(waits, "batch_size") is None
