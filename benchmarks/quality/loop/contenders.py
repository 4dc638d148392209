"""Searches by other tools on the same task, with the same number of trials.

A failed trial is reported to the search with the worst cost so far, because these samplers do not learn from missing results.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from advisor.model.space import HyperparameterValue, natural_limits_of_name
from advisor.model.spec import Parameter, StudySpec
from loop.task import Setting, Task

WIDER = 10.0
"""Factor by which the contenders named "wider" extend each range at both ends."""


@dataclass(frozen=True)
class SearchResult:
    """The result of one search."""

    setting: Setting
    seen: float
    """Cost of the search's best trial."""
    trials: int
    steps: int
    """Total training steps of all trials."""
    log: tuple[str, ...] = ()
    """One line for each decision, and for each block of trials."""
    predictions: tuple[tuple[float, bool], ...] = ()
    """(stated probability, whether the prediction came true) for each prediction that could be judged."""


Search = Callable[[Task, int], SearchResult]


def searches() -> dict[str, Search]:
    """Return the searches of the installed tools, by name."""
    contenders: dict[str, Search] = {
        "TPE": lambda task, seed: _optuna("TPESampler", task, task.start, task.trials, seed),
        "GP": lambda task, seed: _optuna("GPSampler", task, task.start, task.trials, seed),
        "random": lambda task, seed: _optuna("RandomSampler", task, task.start, task.trials, seed),
        "random, 2x trials": lambda task, seed: _optuna("RandomSampler", task, task.start, 2 * task.trials, seed),
        "random, 10x wider": lambda task, seed: _optuna("RandomSampler", task, widened_space(task), task.trials, seed),
        "TPE, 10x wider": lambda task, seed: _optuna("TPESampler", task, widened_space(task), task.trials, seed),
    }
    if find_spec("ax") is not None:
        contenders["Ax"] = _ax
    return contenders


def widened_space(task: Task) -> StudySpec:
    """Return the starting space with every range extended tenfold at both ends, up to the limits of the hyperparameter."""
    parameters = {n: _widen_parameter(n, p) if p.searched and p.numeric else p for n, p in task.start.parameters.items()}
    return task.supported_study(task.start.model_copy(update={"parameters": parameters}))


def _widen_parameter(name: str, parameter: Parameter) -> Parameter:
    assert parameter.low is not None
    assert parameter.high is not None
    floor, ceiling = natural_limits_of_name(name, parameter.type)
    if parameter.scale == "log":
        low, high = parameter.low / WIDER, parameter.high * WIDER
    else:
        length = parameter.high - parameter.low
        low, high = parameter.low - WIDER * length, parameter.high + WIDER * length
    # A value exactly at a limit is not allowed, so the range ends after nine tenths of the distance to the limit.
    low = max(low, parameter.low - 0.9 * (parameter.low - floor)) if math.isfinite(floor) else low
    high = min(high, parameter.high + 0.9 * (ceiling - parameter.high)) if math.isfinite(ceiling) else high
    if parameter.type == "int":
        low, high = max(math.floor(low), 1), math.ceil(high)
    low, high = max(low, parameter.declared_limits[0]), min(high, parameter.declared_limits[1])
    return Parameter.model_validate(parameter.model_dump() | {"low": low, "high": high})


class _TrialTally:
    """Runs and counts the trials of one search."""

    def __init__(self, task: Task, spec: StudySpec, seed: int) -> None:
        self._task, self._spec, self._seed = task, spec, seed
        self._fixed = {n: p.value for n, p in spec.parameters.items() if p.value is not None}
        self._best: tuple[float, Setting] | None = None
        self._last: Setting | None = None
        self.worst, self.count = math.nan, 0

    def run(self, params: dict[str, HyperparameterValue]) -> float:
        """Train a trial and return its cost, or the worst cost so far if the training failed."""
        steps = self._spec.max_train_steps or 1
        setting = Setting({**self._fixed, **params}, steps, dict(self._spec.schedule or {}))
        cost = self._task.run(setting, 1000 * self._seed + self.count).cost
        self.count, self._last = self.count + 1, setting
        if not math.isfinite(cost):
            return self.worst if math.isfinite(self.worst) else 10.0
        self.worst = cost if math.isnan(self.worst) else max(self.worst, cost)
        if self._best is None or cost < self._best[0]:
            self._best = cost, setting
        return cost

    def chosen(self) -> SearchResult:
        """Return the best trial, or the last trial if none had a result."""
        assert self._last is not None
        cost, setting = self._best or (math.nan, self._last)
        return SearchResult(setting, cost, self.count, self.count * setting.steps)


def _optuna(sampler: str, task: Task, spec: StudySpec, trials: int, seed: int) -> SearchResult:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    tally = _TrialTally(task, spec, seed)
    options: dict[str, Any] = {"deterministic_objective": False} if sampler == "GPSampler" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=seed, **options))
        for _ in range(trials):
            asked = study.ask()
            study.tell(asked, tally.run({n: _suggest(asked, n, p) for n, p in spec.searched.items()}))
    return tally.chosen()


def _suggest(trial: Any, name: str, parameter: Parameter) -> HyperparameterValue:
    value: HyperparameterValue
    if not parameter.numeric:
        value = trial.suggest_categorical(name, list(parameter.options))
    elif parameter.type == "int":
        value = trial.suggest_int(name, int(parameter.low or 0), int(parameter.high or 0), log=parameter.scale == "log")
    else:
        value = trial.suggest_float(name, parameter.low, parameter.high, log=parameter.scale == "log")
    return value


def _ax(task: Task, seed: int) -> SearchResult:
    with _silence_libraries():
        # Imported dynamically, so that type checking does not depend on whether Ax is installed.
        client_of: Any = import_module("ax.api.client")
        configs: Any = import_module("ax.api.configs")
        spec, tally = task.start, _TrialTally(task, task.start, seed)
        client = client_of.Client(random_seed=seed)
        client.configure_experiment(
            parameters=[
                configs.RangeParameterConfig(
                    name=n,
                    bounds=(p.low, p.high),
                    parameter_type="int" if p.type == "int" else "float",
                    # Ax has no logarithmic scale for integers.
                    scaling="log" if p.scale == "log" and p.type != "int" else None,
                )
                if p.numeric
                else configs.ChoiceParameterConfig(name=n, values=list(p.options), parameter_type="str", is_ordered=False)
                for n, p in spec.searched.items()
            ]
        )
        client.configure_optimization(objective="-cost")
        while tally.count < task.trials:
            for index, drawn in client.get_next_trials(max_trials=1).items():
                client.complete_trial(trial_index=index, raw_data={"cost": tally.run(dict(drawn))})
    return tally.chosen()


@contextmanager
def _silence_libraries() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
