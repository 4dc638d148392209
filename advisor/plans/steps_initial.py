"""The plan `steps-initial`: a first `max_train_steps`, from how long it takes to fit the training data perfectly.

Playbook: "Algorithm for picking an initial candidate for max_train_steps using a learning rate sweep".

*What calls for it.* No baseline yet, and training that compute does not limit: `advisor init --find-steps N`, where N is a number
of steps in which some training fits its data, or a generous guess. Numbers: `steps` (N), `low` and `high`, the learning rates.

*What it does.* A grid of eight constant learning rates, without data augmentation and regularisation, each for N steps. The rule
`steps-to-fit` reads it: the steps that the fastest trial took to fit the training data are the first `max_train_steps` of the
study that waits for it. With the fastest learning rate at an end of the grid that says nothing, so the grid is moved; where no
trial fits its data, N was too small.
"""

from __future__ import annotations

import numpy as np

from advisor.finding import Advise, Change, RunPlan
from advisor.plans.base import digits, learning_rate
from advisor.readings import kinds
from advisor.spec import Parameter, StudySpec
from advisor.study import Study

RATES = 8
WITHOUT = (
    "Train without data augmentation and without regularisation, at a constant learning rate, and log the loss on the training "
    "data."
)
EVALUATIONS = 100
"""Evaluations over N steps: how exactly the steps can be told."""


def design(ask: RunPlan, _study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """The grid once more, with other learning rates or more steps."""
    rate, numbers = learning_rate(base), ask.numbers
    if rate is None or not {"low", "high", "steps"} <= set(numbers):
        return (Advise(text=f"Find how many steps it takes to fit the training data perfectly. {WITHOUT}"),)
    return grid(base, rate, numbers["low"], numbers["high"], int(numbers["steps"]))


def sweep_first(base: StudySpec, steps: int) -> StudySpec:
    """The grid over the learning rates that the first study searches, before that study."""
    rate = learning_rate(base)
    assert rate is not None
    searched = base.parameters[rate]
    assert searched.low is not None
    assert searched.high is not None
    return grid(
        base.model_copy(update={"max_train_steps": None, "evaluate_every": None}),
        rate,
        searched.low,
        searched.high,
        steps,
    )


def grid(base: StudySpec, rate: str, low: float, high: float, steps: int) -> StudySpec:
    """The study of constant learning rates for `steps` steps each, which `base` waits for."""
    rates = tuple(digits(float(r), 2) for r in np.geomspace(low, high, RATES))
    parameters = {name: _held(name, parameter) for name, parameter in base.parameters.items()}
    why = f"a constant learning rate each, evenly spaced from {rates[0]:g} to {rates[-1]:g}: the fastest must not lie at an end"
    parameters[rate] = Parameter(role="scientific", type="float", choices=rates, why=why)
    return base.model_copy(
        update={
            "goal": f"Find max_train_steps: how soon do {steps:,} steps fit the training data?",
            "parameters": parameters,
            "forbidden": (),
            "trials": RATES,
            "seeds": None,
            "max_train_steps": steps,
            "final_train_steps": None,
            "evaluate_every": max(steps // EVALUATIONS, 1),
            "schedule": {"kind": "constant"},
            "probe": "steps",
            "baseline": base,
            "notes": (WITHOUT,),
        }
    )


def _held(name: str, parameter: Parameter) -> Parameter:
    """The hyperparameter as the grid has it: a regulariser off, one that will be tuned in the middle of its range."""
    if kinds.is_regulariser(name) and (parameter.numeric or isinstance(parameter.value, int | float)):
        return Parameter(role="fixed", value=0.0, why="without regularisation, so that the training data can be fitted")
    if parameter.numeric:
        middle = parameter.from_unit(0.5)
        value = digits(middle, 2) if isinstance(middle, float) else middle
        return Parameter(
            role="fixed", value=value, when=parameter.when, why="the middle of the range that is tuned later"
        )
    if parameter.searched:
        return Parameter(role="fixed", value=parameter.options[0], when=parameter.when, why="compared or tuned later")
    return parameter
