from __future__ import annotations

from typing import Any

import numpy as np
from studies import make_study

from advisor.computed.batch import throughput
from advisor.model.spec import Parameter
from advisor.model.study import Study
from advisor.planning.base import base
from advisor.planning.batch_sizes import MEASURE_THROUGHPUT_ADVICE

RANGE = Parameter(type="int", low=16, high=256, scale="log")


def study(sizes: list[int], best: int, parameter: Parameter = RANGE, speed: Any = None, **more: Any) -> Study:
    params = [{"lr": 0.01 * (i + 1), "batch_size": size} for i, size in enumerate(sizes)]
    curves = {"val/loss": [[2.0, 0.5 if i == best else 1 + 0.01 * i] for i in range(len(sizes))]}
    if speed is not None:
        rng = np.random.default_rng(0)
        curves["train/examples_per_s"] = [speed(s) * np.exp(0.01 * rng.standard_normal(30)) for s in sizes]
    space = {"lr": Parameter(low=0.01, high=0.2, scale="log"), "batch_size": parameter}
    return make_study(params, curves, space=space, **more)


def test_a_range_becomes_the_power_of_two_next_to_the_best_trials() -> None:
    made = base(study([17, 65, 110, 185, 230, 90], best=2))
    assert (made.parameters["batch_size"].role, made.parameters["batch_size"].value) == ("fixed", 64)
    assert "110, as a power of two" in (made.parameters["batch_size"].why or "")
    assert MEASURE_THROUGHPUT_ADVICE in made.notes


def test_a_listed_size_stays_as_it_is() -> None:
    made = base(study([24, 48, 24, 48, 24, 48], best=1, parameter=Parameter(type="int", choices=(24, 48))))
    assert made.parameters["batch_size"].value == 48


def test_the_throughput_decides_where_it_is_known() -> None:
    made = base(study([32, 64, 128, 32, 64, 128], best=0, speed=lambda size: 100.0 * size))
    assert made.parameters["batch_size"].value == 128
    assert "throughput" in (made.parameters["batch_size"].why or "")
    assert not any("batch_size_sweep" in note for note in made.notes)


def test_no_size_that_ran_out_of_memory_is_taken() -> None:
    tags = [{"error": "out of memory"} if size == 128 else {} for size in (100, 128, 60, 30)]
    status = ["infeasible" if size == 128 else "complete" for size in (100, 128, 60, 30)]
    made = base(study([100, 128, 60, 30], best=0, tags=tags, status=status))
    assert made.parameters["batch_size"].value == 64


def test_compared_sizes_are_a_list_of_powers_of_two() -> None:
    made = base(study([17, 65, 110, 185], best=2, parameter=RANGE.model_copy(update={"role": "scientific"})))
    p = made.parameters["batch_size"]
    assert (p.role, p.choices) == ("scientific", (16, 32, 64, 128, 256))
    assert made.trials == 5


def test_limits_stay_and_words_are_kept() -> None:
    limited = Parameter(type="int", low=16, high=100, scale="log", limits=(16, 100))
    made = base(study([17, 65, 90, 30], best=2, parameter=limited))
    assert (made.parameters["batch_size"].value, made.parameters["batch_size"].limits) == (64, (16, 100))
    words = Parameter(choices=("auto", "full"))
    params = [{"lr": 0.1 * (i + 1), "batch_size": ("auto", "full")[i % 2]} for i in range(4)]
    curves = {"val/loss": [[2.0, 1.0 + i] for i in range(4)]}
    made = base(make_study(params, curves, space={"lr": Parameter(low=0.01, high=1.0), "batch_size": words}))
    assert made.parameters["batch_size"].value == "auto"


def test_the_throughput_of_trials_that_wait_for_data_decides_nothing() -> None:
    made = study([32, 64, 128, 32, 64, 128], best=0, speed=lambda size: 100.0 * size)
    assert throughput.recommended_batch_size(made, "batch_size") == 128
    step = np.full((6, 100), 0.02)
    metrics = {"train/step_time_s": step, "train/data_wait_s": 0.9 * step}
    params = [dict(t.params) for t in made.trials]
    curves = {"val/loss": [[2.0, 1.0]] * 6, "train/examples_per_s": [[3200.0] * 30] * 6, **metrics}
    waits = make_study(params, curves, every=1)
    assert throughput.recommended_batch_size(waits, "batch_size") is None
