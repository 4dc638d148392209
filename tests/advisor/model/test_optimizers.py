from __future__ import annotations

from typing import Any

import pytest

from advisor.model.optimizers import denotes_hyperparameter, need_different_ranges, optimizer_in_value, shared_learning_rate
from advisor.model.spec import Objective, Parameter, StudySpec

AIM = Objective(metric="val/loss", direction="minimize")
RATE = Parameter(low=1e-5, high=1e-1, scale="log")


@pytest.mark.parametrize(
    ("value", "optimizer"),
    [
        ("SGD", "sgd"),
        ("torch.optim.SGD", "sgd"),
        ("sgd_momentum", "sgd"),
        ("SGD(lr=0.1, momentum=0.9)", "sgd"),
        ("SGD_nesterov", "nesterov"),
        ("AdamW", "adamw"),
        ("adamw_torch", "adamw"),
        ("paged_adamw_8bit", "adamw"),
        ("NAdam", "nadam"),
        ("Adam", "adam"),
        ("RMSprop", "rmsprop"),
        ("lion", None),
        ("adafactor", None),
    ],
)
def test_optimizers_are_known_under_their_usual_spellings(value: str, optimizer: str | None) -> None:
    assert optimizer_in_value(value) == optimizer


def test_names_denote_hyperparameters_of_an_optimizer() -> None:
    assert denotes_hyperparameter("epsilon", "adam_eps", "adam")
    assert denotes_hyperparameter("learning_rate", "optim.lr")
    assert not denotes_hyperparameter("beta1", "beta2")


def test_variants_of_adam_have_the_same_usual_rates_and_unknown_optimizers_their_own() -> None:
    assert not need_different_ranges(["adam", "AdamW", "nadam"])
    assert need_different_ranges(["adam", "sgd"])
    assert need_different_ranges(["adam", "lion"])


def spec(**parameters: Any) -> StudySpec:
    return StudySpec(study="s", objective=AIM, parameters=parameters)


def test_a_rate_is_shared_unless_each_optimizer_has_its_own() -> None:
    optimizer = Parameter(choices=("sgd", "adam"))
    assert shared_learning_rate(spec(optimizer=optimizer, lr=RATE)) == ("optimizer", "lr")
    assert shared_learning_rate(spec(opt=optimizer, lr=Parameter(role="fixed", value=0.1))) == ("opt", "lr")
    assert shared_learning_rate(spec(optimizer=optimizer, sgd_lr=RATE, adam_lr=RATE)) is None
    conditional = RATE.model_copy(update={"when": {"optimizer": "sgd"}})
    assert shared_learning_rate(spec(optimizer=optimizer, lr=conditional)) is None
    assert shared_learning_rate(spec(optimizer=Parameter(choices=("adam", "adamw")), lr=RATE)) is None
    assert shared_learning_rate(spec(optimizer=Parameter(role="fixed", value="sgd"), lr=RATE)) is None
