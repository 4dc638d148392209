"""Data classes for a study to record and its labels, and the spaces and trainings that several studies share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.model.space import HyperparameterValue
from advisor.model.spec import Parameter
from recordings.training import Training


@dataclass(frozen=True)
class Label:
    """States that a rule must, or must not, fire on a study."""

    rule: str
    fires: bool = True
    subject: str | None = None
    side: str | None = None
    accept: tuple[str, ...] = ()
    """Rules that may fire in place of the labelled rule."""


@dataclass(frozen=True)
class RecordedStudy:
    """A study to record, with its cause and labels."""

    name: str
    cause: str
    """Description of the cause that is switched on in the study."""
    training: Training
    space: Mapping[str, Parameter]
    labels: tuple[Label, ...]
    trials: int = 12
    fixed: tuple[Mapping[str, float | int | str], ...] = field(default=())
    """Hyperparameters of each trial, if they are listed instead of drawn at random."""
    asked: Mapping[str, HyperparameterValue] | None = None
    """Learning-rate schedule that the study file asks for; the training has its own."""


def log_range(low: float, high: float) -> Parameter:
    return Parameter(low=low, high=high, scale="log")


def linear_range(low: float, high: float) -> Parameter:
    return Parameter(low=low, high=high, scale="linear")


# Arguments are packed into few lines, which the formatter would undo.
# fmt: off
SPACE = {"learning_rate": log_range(0.01, 1.5), "momentum": linear_range(0.6, 0.98), "weight_decay": log_range(1e-6, 3e-3)}
"""Space in which the highest learning rates and momenta diverge together; for causes that show all the same."""
TAME = {"learning_rate": log_range(0.005, 0.5), "momentum": linear_range(0.5, 0.9), "weight_decay": log_range(1e-6, 3e-3)}
"""Space in which all settings train successfully, and the best setting lies inside."""
ADAM = {"learning_rate": log_range(3e-4, 0.05), "beta1": linear_range(0.7, 0.95), "weight_decay": log_range(1e-4, 0.1)}
MLP = Training()
CNN = Training(task="digits-cnn", learning_rate=0.1, norm="none")
WALK = Training(
    task="walk", optimizer="adam", learning_rate=3e-3, norm="pre", width=32, batch_size=32, n_train=1600, n_valid=200,
    objective="val/loss", dropout=0.0, max_train_steps=300,
)
TEXT = Training(
    task="text", optimizer="adam", learning_rate=3e-3, norm="pre", width=48, batch_size=32, n_train=6000, n_valid=300,
    objective="val/loss", dropout=0.0, max_train_steps=300,
)
# fmt: on


def must_fire(*rules: Label | str) -> tuple[Label, ...]:
    return tuple(Label(rule) if isinstance(rule, str) else rule for rule in rules)


def must_not_fire(*rules: str) -> tuple[Label, ...]:
    return tuple(Label(rule, fires=False) for rule in rules)


def grid(
    name: str, values: tuple[float | int | str, ...], **others: float | int | str
) -> tuple[Mapping[str, float | int | str], ...]:
    return tuple({name: value, **others} for value in values)


def repeated(*settings: Mapping[str, float | int | str], times: int) -> tuple[Mapping[str, float | int | str], ...]:
    return tuple(setting for setting in settings for _ in range(times))
