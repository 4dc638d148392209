"""Goals of studies: a verb, an object and numbers."""

from __future__ import annotations

import pytest
from planning_studies import AIM, SPACE

from advisor.model.change import (
    AddParameter,
    Advise,
    Change,
    FixParameter,
    Reparametrise,
    RepeatTrial,
    SetField,
    SetRange,
    SetSchedule,
)
from advisor.model.spec import Parameter, StudySpec
from advisor.planning.goals import goal_after_manual_fix, goal_text

BEFORE = StudySpec(study="s", objective=AIM, parameters=SPACE, trials=20, max_train_steps=2000)


def span(low: float, high: float, name: str = "lr") -> SetRange:
    return SetRange(parameter=name, low=low, high=high, scale="log", why="w")


@pytest.mark.parametrize(
    ("changes", "goal"),
    [
        ([span(1e-4, 1.0)], "Widen lr: 1e-4 to 1"),
        ([span(1e-3, 1e-2)], "Narrow lr: 0.001 to 0.01"),
        ([span(1e-2, 1.0)], "Search higher lr: 0.01 to 1"),
        (
            [span(1e-4, 1.0), span(1e-6, 0.1, "weight_decay")],
            "Widen lr and weight_decay: lr 1e-4 to 1; weight_decay 1e-6 to 0.1",
        ),
        ([FixParameter(parameter="weight_decay", value=0.01, why="w", for_now=True), span(1e-4, 1.0)], "Widen lr: 1e-4 to 1"),
        ([FixParameter(parameter="weight_decay", value=0.01, why="w", for_now=True)], "Fix weight_decay at 0.01"),
        (
            [FixParameter(parameter="weight_decay", value=0.01, why="w"), span(1e-3, 1e-2)],
            "Fix weight_decay at 0.01 and narrow lr: 0.001 to 0.01",
        ),
        ([SetField(field="max_train_steps", value=3000, why="w")], "Lengthen training: 2,000 to 3,000 steps"),
        ([SetField(field="max_train_steps", value=900, why="w")], "Shorten training: 2,000 to 900 steps"),
        ([SetField(field="trials", value=48, why="w")], "Try 48 more settings of lr, weight_decay"),
        ([AddParameter(name="dropout", parameter=Parameter(low=0.0, high=0.5))], "Add dropout: 0 to 0.5"),
        (
            [AddParameter(name="dropout", parameter=Parameter(role="scientific", type="float", choices=(0.0, 0.1)))],
            "Compare dropout: 0 and 0.1",
        ),
        (
            [
                Reparametrise(
                    parameter="lr", by="effective_lr", formula="effective_lr * (1 - momentum)", equals="lr / (1 - momentum)",
                    low=0.01, high=0.5, scale="log", why="w",
                )
            ],
            "Search lr / (1 - momentum) instead of lr: 0.01 to 0.5",
        ),
        ([SetSchedule(schedule={"kind": "cosine"}, why="w")], "Set the learning-rate schedule: cosine"),
        (
            [RepeatTrial(parameters={"lr": 0.1}, seeds=5, why="w")],
            "Repeat the best setting: 5 seeds, to measure the variation between them",
        ),
        ([Advise(text="Look.")], "Repeat the study"),
    ],
)  # fmt: skip
def test_a_goal_has_a_verb_an_object_and_numbers(changes: list[Change], goal: str) -> None:
    after = BEFORE
    for change in changes:
        after = change.apply(after)
    assert goal_text(changes, BEFORE, after) == goal


def test_a_fix_by_hand_names_what_to_do() -> None:
    assert goal_after_manual_fix("Shuffle the data.") == "Search again once this is done: Shuffle the data"


def test_a_length_is_fixed_where_trials_had_several() -> None:
    before = BEFORE.model_copy(update={"max_train_steps": None})
    length = SetField(field="max_train_steps", value=305, why="w")
    assert goal_text([length], before, length.apply(before)) == "Fix the length of training at 305 steps"


def test_a_hyperparameter_that_counts_the_length_says_it_alone() -> None:
    iterations = Parameter(role="nuisance", type="int", low=1800, high=1900)
    before = BEFORE.model_copy(update={"max_train_steps": None}).with_parameter("num_iterations", iterations)
    changes = [
        SetField(field="max_train_steps", value=1880, why="w"),
        FixParameter(parameter="num_iterations", value=1840, why="w"),
    ]
    after = before
    for change in changes:
        after = change.apply(after)
    assert goal_text(changes, before, after) == "Fix num_iterations at 1,840"


def test_another_value_of_a_fixed_hyperparameter_is_a_raise() -> None:
    before = BEFORE.with_parameter("max_completion_length", Parameter(role="fixed", value=6))
    change = FixParameter(parameter="max_completion_length", value=12, why="w")
    assert goal_text([change], before, change.apply(before)) == "Raise max_completion_length: 6 to 12"
