"""Hyperparameters of well-known optimizers, and the usual ranges of their values.

Playbook: "How should Adam's hyperparameters be tuned?". The hyperparameters of one optimizer do not carry over to another: a good
learning rate of SGD is about a hundred times one of Adam.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from advisor.model import parameter_kinds
from advisor.model.space import Scale, Value, is_learning_rate, words_of
from advisor.model.spec import StudySpec

RATE_TRIALS = 10
"""Number of trials that tunes a learning rate alone; the playbook tunes more hyperparameters with more trials."""


@dataclass(frozen=True)
class Rung:
    """A hyperparameter of an optimizer that is tuned if the study has a minimum number of trials."""

    name: str
    min_trials: int
    default: float
    """Value of the hyperparameter if the study has too few trials to tune it."""
    low: float
    high: float
    scale: Scale = "log"


_RATE = Rung("learning_rate", 0, 1e-3, 1e-5, 0.03)
_ADAM = (
    _RATE,
    Rung("beta1", RATE_TRIALS, 0.9, 0.5, 0.99, "reverse-log"),
    Rung("epsilon", 25, 1e-8, 1e-10, 1e-3),
    Rung("beta2", 50, 0.999, 0.9, 0.9999, "reverse-log"),
)
_MOMENTUM = Rung("momentum", RATE_TRIALS, 0.9, 0.5, 0.99, "reverse-log")
_SGD = (Rung("learning_rate", 0, 1e-1, 1e-3, 1.0), _MOMENTUM)
LADDERS: Mapping[str, tuple[Rung, ...]] = {
    "adam": _ADAM,
    "adamw": _ADAM,
    "nadam": _ADAM,
    "sgd": _SGD,
    "nesterov": _SGD,
    "rmsprop": (_RATE, _MOMENTUM, Rung("epsilon", 25, 1e-8, 1e-10, 1e-3)),
}
"""Hyperparameters that can be tuned for each optimizer. The ranges are deliberately wide, but hold no unusual learning rates
(`usual_rates`); later reports move or narrow them."""

_ALIASES = {"epsilon": "eps"}
_SPELLINGS = {
    "nesterov": "nesterov",
    "rmsprop": "rmsprop",
    "sgd": "sgd",
    "momentum": "sgd",
    "nadam": "nadam",
    "adamw": "adamw",
    "adam": "adam",
}
"""The optimizer in `LADDERS` that a value denotes if it contains this word; the first match counts."""


def optimizer_of(value: Value) -> str | None:
    """Return the optimizer in `LADDERS` that a value such as `torch.optim.SGD` or `adamw_torch` denotes; None if it is unknown."""
    text = "".join(words_of(str(value).partition("(")[0].rpartition(".")[2]))
    return next((name for part, name in _SPELLINGS.items() if part in text), None)


def denotes(rung: str, name: str, optimizer: str = "") -> bool:
    """Return whether a name, such as lr, adam_beta1 or eps, denotes this hyperparameter of the optimizer."""
    short = "".join(words_of(name)).removeprefix(optimizer)
    return is_learning_rate(name) if rung == "learning_rate" else short in (rung, _ALIASES.get(rung))


def differ(values: Iterable[Value]) -> bool:
    """Return whether optimizers need different ranges. Unknown ones differ from all others."""
    return len({LADDERS.get(optimizer_of(v) or "", v) for v in values}) > 1


def shared_rate(spec: StudySpec) -> tuple[str, str] | None:
    """Return (choice of optimizer, learning rate) if optimizers of different usual rates are searched with one rate for all."""
    chooser = next((n for n, p in spec.searched.items() if p.options and parameter_kinds.chooses_optimizer(n)), None)
    if chooser is None or not differ(spec.searched[chooser].options):
        return None
    for name, parameter in spec.parameters.items():
        own = chooser in (parameter.when or {}) or any(optimizer_of(word) for word in words_of(name))
        if is_learning_rate(name) and parameter.role != "derived" and not own:
            return chooser, name
    return None
