from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from planning_studies import asks, assert_ready_to_run
from studies import make_study

from advisor.model.errors import AdvisorError
from advisor.model.spec import Bounds, Objective, Parameter, Region, StudySpec
from advisor.planning import plan
from advisor.planning.designs.initial import FirstStudyRequest
from advisor.planning.designs.per_optimizer import MIN_TRIALS_OF_OPTIMIZER, divide_by_optimizer, first_study_per_optimizer

AIM = Objective(metric="val/loss", direction="minimize")


def spec(*values: str, low: float = 1e-5, high: float = 1e-1, trials: int = 24, **more: Any) -> StudySpec:
    parameters = {
        "optimizer": Parameter(role="scientific", choices=values),
        "lr": Parameter(low=low, high=high, scale="log"),
        **more,
    }
    return StudySpec(study="s-round-2", objective=AIM, parameters=parameters, trials=trials)


def test_each_optimizer_gets_its_own_study_and_ladder() -> None:
    sgd, adam = divide_by_optimizer([spec("sgd", "adam", momentum=Parameter(low=0.5, high=0.99, scale="reverse-log"))])
    for made in (sgd, adam):
        assert_ready_to_run(made)
        assert made.trials == 12
    assert (sgd.parameters["lr"].low, sgd.parameters["lr"].high) == (1e-3, 1)
    assert (adam.parameters["lr"].low, adam.parameters["lr"].high) == (1e-5, 0.03)
    assert set(sgd.searched) == {"lr", "momentum"}
    assert set(adam.searched) == {"lr", "beta1"}  # beta1 from 10 trials, epsilon from 25
    assert (sgd.study, adam.study) == ("s-sgd-round-2", "s-adam-round-2")
    assert sgd.goal == "Tune sgd in a separate study: lr, momentum; then adam"


@pytest.mark.parametrize("sgd_trials", [12, 4])
def test_trials_of_an_optimizer_narrow_its_usual_rates_if_they_are_enough(sgd_trials: int) -> None:
    rng = np.random.default_rng(0)
    drawn = [("sgd" if i < sgd_trials else "adam", 10 ** rng.uniform(-4, -1)) for i in range(24)]
    ends = [0.3 + 0.2 * (np.log10(rate) + (1.5 if name == "sgd" else 3.0)) ** 2 for name, rate in drawn]
    params = [{"optimizer": name, "lr": rate, "dropout": float(rng.uniform(0, 0.5))} for name, rate in drawn]
    space = {**spec("sgd", "adam", low=1e-4).parameters, "dropout": Parameter(low=0.0, high=0.5)}
    made = plan(make_study(params, {"val/loss": [[5.0, 4.0, end] for end in ends]}, space=space), [asks("per-optimizer")])
    rates = {s.parameters["optimizer"].value: s.parameters["lr"] for s in made.specs}
    assert rates["adam"].contains(1e-3)
    assert rates["adam"].high < 0.03
    assert rates["sgd"].contains(10**-1.5)
    assert ((rates["sgd"].low, rates["sgd"].high) == (1e-3, 1.0)) == (sgd_trials < MIN_TRIALS_OF_OPTIMIZER)


def test_fine_tuning_keeps_its_low_rates() -> None:
    sgd, adam = divide_by_optimizer([spec("torch.optim.SGD", "torch.optim.AdamW", low=1e-6, high=1e-4)])
    assert (adam.parameters["lr"].low, adam.parameters["lr"].high) == (1e-6, 1e-4)
    assert (sgd.parameters["lr"].low, sgd.parameters["lr"].high) == (1e-4, 1e-2)


def test_an_unknown_optimizer_keeps_the_searched_range() -> None:
    _, lion = divide_by_optimizer([spec("adam", "lion", low=1e-4, high=1e-2)])
    assert (lion.parameters["lr"].low, lion.parameters["lr"].high) == (1e-4, 1e-2)


def test_what_others_depend_on_stays_and_regions_without_their_hyperparameter_go() -> None:
    more = {"momentum": Parameter(low=0.5, high=0.9), "step": Parameter(role="derived", formula="lr / (1 - momentum)")}
    assert all("momentum" in s.parameters for s in divide_by_optimizer([spec("sgd", "adam", **more)]))
    del more["step"]
    region = Region(where={"momentum": Bounds(low=0.8)})
    sgd, adam = divide_by_optimizer([spec("sgd", "adam", **more).model_copy(update={"forbidden": (region,)})])
    assert (sgd.forbidden, adam.forbidden) == ((region,), ())


def test_studies_with_one_optimizer_are_not_divided() -> None:
    one = spec("adam", "adamw")
    assert divide_by_optimizer([one]) == [one]


def wish(*values: str, **parameters: Parameter) -> FirstStudyRequest:
    compared = {"opt": Parameter(role="scientific", choices=values)}
    return FirstStudyRequest(study="s", objective=AIM, optimizer="adam", trials=40, parameters=compared | parameters)


def test_first_studies_have_the_ladder_of_their_optimizer() -> None:
    sgd, adam = first_study_per_optimizer(wish("SGD", "Adam", momentum=Parameter(low=0.1, high=0.9)), "opt")
    assert (sgd.parameters["opt"].value, adam.parameters["opt"].value) == ("SGD", "Adam")
    assert set(sgd.searched) == {"learning_rate", "momentum"}
    assert set(adam.searched) == {"learning_rate", "beta1"}
    assert "momentum" not in adam.parameters
    assert {"epsilon", "beta2"} < set(adam.parameters)
    assert sgd.trials == adam.trials == 20


@pytest.mark.parametrize(
    ("wished", "message"),
    [(wish("adam", "lion"), "lion"), (wish("adam", "sgd", lr=Parameter(low=1e-4, high=1e-1)), "one range of lr")],
)
def test_what_has_no_usual_range_is_refused(wished: FirstStudyRequest, message: str) -> None:
    with pytest.raises(AdvisorError, match=message):
        first_study_per_optimizer(wished, "opt")


def test_each_optimizer_gets_enough_trials_to_judge_its_space() -> None:
    assert [made.trials for made in divide_by_optimizer([spec("sgd", "adam", "rmsprop", trials=12)])] == [5, 5, 5]


def test_first_studies_have_enough_trials_to_judge_their_space() -> None:
    few = replace(wish("SGD", "Adam"), trials=8)
    assert [made.trials for made in first_study_per_optimizer(few, "opt")] == [5, 5]
