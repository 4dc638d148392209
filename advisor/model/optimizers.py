"""Lists the hyperparameters of optimizers with the ranges of a first search, by the Deep Learning Tuning Playbook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advisor.model import parameter_kinds
from advisor.model.space import AxisScale, HyperparameterValue, Params, is_learning_rate, words_of_name
from advisor.model.spec import StudySpec

TRIALS_FOR_RATE_ONLY = 10
"""Number of trials up to which the Deep Learning Tuning Playbook tunes only the learning rate."""


@dataclass(frozen=True)
class TunableHyperparameter:
    """A hyperparameter of an optimizer that is tuned in studies with at least `min_trials` trials."""

    name: str
    min_trials: int
    default: float
    """Value of the hyperparameter in studies that have too few trials to tune the hyperparameter."""
    low: float
    high: float
    scale: AxisScale = "log"


_LEARNING_RATE = TunableHyperparameter("learning_rate", 0, 1e-3, 1e-5, 0.03)
_ADAM_HYPERPARAMETERS = (
    _LEARNING_RATE,
    TunableHyperparameter("beta1", TRIALS_FOR_RATE_ONLY, 0.9, 0.5, 0.99, "reverse-log"),
    TunableHyperparameter("epsilon", 25, 1e-8, 1e-10, 1e-3),
    TunableHyperparameter("beta2", 50, 0.999, 0.9, 0.9999, "reverse-log"),
)
_MOMENTUM = TunableHyperparameter("momentum", TRIALS_FOR_RATE_ONLY, 0.9, 0.5, 0.99, "reverse-log")
_SGD_HYPERPARAMETERS = (TunableHyperparameter("learning_rate", 0, 1e-1, 1e-3, 1.0), _MOMENTUM)
HYPERPARAMETERS_BY_OPTIMIZER: Mapping[str, tuple[TunableHyperparameter, ...]] = {
    "adam": _ADAM_HYPERPARAMETERS,
    "adamw": _ADAM_HYPERPARAMETERS,
    "nadam": _ADAM_HYPERPARAMETERS,
    "sgd": _SGD_HYPERPARAMETERS,
    "nesterov": _SGD_HYPERPARAMETERS,
    "rmsprop": (_LEARNING_RATE, _MOMENTUM, TunableHyperparameter("epsilon", 25, 1e-8, 1e-10, 1e-3)),
}
"""Tunable hyperparameters of each optimizer, with the ranges of a first search. The ranges are wide on purpose, but contain no
unusual learning rates; later reports move or narrow them."""

_OPTIMIZER_WORDS = ("nesterov", "rmsprop", "sgd", "momentum", "nadam", "adamw", "adam")
"""Words in names of optimizers; of several words in a name, the first one here counts."""


def optimizer_in_value(value: HyperparameterValue) -> str | None:
    """Return the optimizer that a value such as `torch.optim.SGD` or `adamw_torch` names, or None if the value names none."""
    text = "".join(words_of_name(str(value).partition("(")[0].rpartition(".")[2]))
    return next(("sgd" if word == "momentum" else word for word in _OPTIMIZER_WORDS if word in text), None)


def optimizer_name(params: Params, facts: Mapping[str, str]) -> str:
    """Return the optimizer of a trial, from its hyperparameters or else from logged facts; empty if unknown."""
    optimizer_choices = (str(value) for name, value in params.items() if parameter_kinds.chooses_optimizer(name))
    return next(optimizer_choices, facts.get("optimizer", ""))


def denotes_hyperparameter(rung: str, name: str, optimizer: str = "") -> bool:
    """Return True if a name such as lr, adam_beta1 or eps denotes the hyperparameter `rung` of the optimizer."""
    joined_name = "".join(words_of_name(name)).removeprefix(optimizer)
    return is_learning_rate(name) if rung == "learning_rate" else joined_name in (rung, {"epsilon": "eps"}.get(rung))


def need_different_ranges(values: Iterable[HyperparameterValue]) -> bool:
    """Return True if the optimizers need different ranges. An unknown optimizer counts as different from all others."""
    return len({HYPERPARAMETERS_BY_OPTIMIZER.get(optimizer_in_value(v) or "", v) for v in values}) > 1


def shared_learning_rate(spec: StudySpec) -> tuple[str, str] | None:
    """Return (choice of the optimizer, learning rate) if optimizers with different usual rates share one learning rate."""
    choice = next((n for n, p in spec.searched.items() if p.options and parameter_kinds.chooses_optimizer(n)), None)
    if choice is None or not need_different_ranges(spec.searched[choice].options):
        return None
    for name, parameter in spec.parameters.items():
        belongs_to_one = choice in (parameter.when or {}) or any(optimizer_in_value(word) for word in words_of_name(name))
        if is_learning_rate(name) and parameter.role != "derived" and not belongs_to_one:
            return choice, name
    return None
