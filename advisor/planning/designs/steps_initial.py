"""The design `steps-initial`: choose a first `max_train_steps` by measuring the number of steps that training needs to fit the
training data.

Playbook: "Algorithm for picking an initial candidate for max_train_steps using a learning rate sweep".

*When.* There is no baseline yet, compute does not limit training, and the user runs `advisor init --find-steps N`. N is a guess
of the steps within which a trial fits its training data. Numbers in the request: `steps` (N), `low` and `high` (the learning
rates).

*What.* A grid of eight constant learning rates, each trained for N steps without data augmentation and regularisation. A rule
analyses the grid: the number of steps of the fastest trial becomes the first `max_train_steps`. If the fastest learning rate
lies at an end of the grid, the grid moves towards this end. If no trial fits its training data, the number of steps N is
increased."""

from __future__ import annotations

import numpy as np

from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.errors import AdvisorError
from advisor.model.prediction import round_significant
from advisor.model.space import HyperparameterValue
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import learning_rate, validate_spec

GRID_LEARNING_RATES = 8
RATE_ADVICE = "Train at a constant learning rate without augmentation and regularisation. Log the loss on the training data."
EVALUATIONS_PER_TRIAL = 100
"""Number of evaluations per trial, which limits how precisely the number of steps is measured."""


def design(request: RunPlan, _study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Return the grid with the requested learning rates and number of steps, or advice if the request lacks these numbers."""
    rate, numbers = learning_rate(base), request.numbers
    if rate is None or not {"low", "high", "steps"} <= set(numbers):
        return (Advise(text=f"Find how many steps it takes to fit the training data perfectly. {RATE_ADVICE}"),)
    return learning_rate_grid(base, rate, numbers["low"], numbers["high"], int(numbers["steps"]))


def initial_rate_sweep(base: StudySpec, steps: int) -> StudySpec:
    """Return the grid over the learning-rate range of the first study `base`. Raises AdvisorError without a range."""
    rate = learning_rate(base) or "learning_rate"
    rate_parameter = base.searched.get(rate)
    if rate_parameter is None or rate_parameter.low is None or rate_parameter.high is None or rate_parameter.low <= 0:
        raise AdvisorError(f"--find-steps needs a range of learning rates that starts above 0: add --tune {rate}=1e-4..1:log")
    spec_without_length = base.model_copy(update={"max_train_steps": None, "evaluate_every": None})
    return validate_spec(learning_rate_grid(spec_without_length, rate, rate_parameter.low, rate_parameter.high, steps))


def learning_rate_grid(base: StudySpec, rate: str, low: float, high: float, steps: int) -> StudySpec:
    """Return a study that trains `steps` steps at each of several constant learning rates, to run before the study `base`."""
    exact_rates = [float(r) for r in np.geomspace(low, high, GRID_LEARNING_RATES)]
    grid_rates = tuple(round_significant(r, 2) for r in exact_rates)
    if len(set(grid_rates)) < GRID_LEARNING_RATES:  # two digits are too few to tell the rates apart
        grid_rates = tuple(dict.fromkeys(round_significant(r, 12) for r in exact_rates))
    parameters = {name: _fixed_in_grid(name, parameter) for name, parameter in base.parameters.items()}
    ends = f"{grid_rates[0]:g} to {grid_rates[-1]:g}"
    why = f"constant rates, log-spaced from {ends}; the fastest rate must be neither the lowest nor the highest"
    parameters[rate] = Parameter(role="scientific", type="float", choices=grid_rates, why=why)
    return base.model_copy(
        update={
            "goal": f"Find max_train_steps: fit the training data within {steps:,} steps",
            "parameters": parameters,
            "forbidden": (),
            "trials": len(grid_rates),
            "seeds": None,
            "max_train_steps": steps,
            "final_train_steps": None,
            "evaluate_every": max(steps // EVALUATIONS_PER_TRIAL, 1),
            "schedule": {"kind": "constant"},
            "probe": "steps",
            "baseline": base,
            "notes": (RATE_ADVICE,),
        }
    )


def _fixed_in_grid(name: str, parameter: Parameter) -> Parameter:
    if parameter_kinds.is_regulariser(name) and (off := _unregularised_value(parameter)) is not None:
        why = "no regularisation, so that the training data can be fitted"
        return Parameter(role="fixed", value=off, when=parameter.when, why=why)
    if parameter.numeric:
        middle = parameter.value_at_position(0.5)
        value = round_significant(middle, 2) if isinstance(middle, float) else middle
        return Parameter(role="fixed", value=value, when=parameter.when, why="the middle of its range; tuned later")
    if parameter.searched:
        return Parameter(role="fixed", value=parameter.options[0], when=parameter.when, why="compared or tuned later")
    return parameter


def _unregularised_value(parameter: Parameter) -> HyperparameterValue | None:
    values = parameter.options or (parameter.value,)
    if parameter.type == "bool" or all(isinstance(v, bool) for v in values):
        return False
    if parameter.numeric or all(isinstance(v, int | float) for v in values):
        return 0 if parameter.type == "int" else 0.0
    return next((v for v in values if isinstance(v, str) and v.lower() in ("none", "off", "no")), None)
