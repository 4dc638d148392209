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

from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import checked, digits, learning_rate

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
    """The grid over the learning rates that the first study searches, before that study; AdvisorError without a range of them."""
    rate = learning_rate(base) or "learning_rate"
    searched = base.searched.get(rate)
    if searched is None or searched.low is None or searched.high is None or searched.low <= 0:
        raise AdvisorError(
            f"--find-steps tries learning rates over a range: give {rate} one that starts above 0, as in --tune {rate}=1e-4..1:log"
        )
    before = base.model_copy(update={"max_train_steps": None, "evaluate_every": None})
    return checked(grid(before, rate, searched.low, searched.high, steps))


def grid(base: StudySpec, rate: str, low: float, high: float, steps: int) -> StudySpec:
    """The study of constant learning rates for `steps` steps each, which `base` waits for."""
    rates = _rates(low, high)
    parameters = {name: _held(name, parameter) for name, parameter in base.parameters.items()}
    why = f"a constant learning rate each, evenly spaced from {rates[0]:g} to {rates[-1]:g}: the fastest must not lie at an end"
    parameters[rate] = Parameter(role="scientific", type="float", choices=rates, why=why)
    return base.model_copy(
        update={
            "goal": f"Find max_train_steps: how soon do {steps:,} steps fit the training data?",
            "parameters": parameters,
            "forbidden": (),
            "trials": len(rates),
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


def _rates(low: float, high: float) -> tuple[float, ...]:
    """The learning rates from low to high, with as few digits as tell them apart; no two are the same."""
    even = [float(r) for r in np.geomspace(low, high, RATES)]
    short = tuple(digits(r, 2) for r in even)
    return short if len(set(short)) == RATES else tuple(dict.fromkeys(digits(r, 12) for r in even))


def _held(name: str, parameter: Parameter) -> Parameter:
    """The hyperparameter as the grid has it: a regulariser off, one that will be tuned in the middle of its range."""
    if parameter_kinds.is_regulariser(name) and (off := _off(parameter)) is not None:
        why = "without regularisation, so that the training data can be fitted"
        return Parameter(role="fixed", value=off, when=parameter.when, why=why)
    if parameter.numeric:
        middle = parameter.from_unit(0.5)
        value = digits(middle, 2) if isinstance(middle, float) else middle
        return Parameter(
            role="fixed", value=value, when=parameter.when, why="the middle of the range that is tuned later"
        )
    if parameter.searched:
        return Parameter(role="fixed", value=parameter.options[0], when=parameter.when, why="compared or tuned later")
    return parameter


def _off(parameter: Parameter) -> Value | None:
    """The value with which a regulariser does nothing; None where its values do not tell."""
    values = parameter.options or (parameter.value,)
    if parameter.type == "bool" or all(isinstance(v, bool) for v in values):
        return False
    if parameter.numeric or all(isinstance(v, int | float) for v in values):
        return 0 if parameter.type == "int" else 0.0
    return next((v for v in values if isinstance(v, str) and v.lower() in ("none", "off", "no")), None)
