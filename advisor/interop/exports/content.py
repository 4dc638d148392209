"""What all exports ask of a study: what a tool cannot say of its space, and what no search file says of its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec

Trials: TypeAlias = Sequence[Mapping[str, Value]]

_TRAINING = (
    "max_train_steps",
    "final_train_steps",
    "evaluate_every",
    "checkpoints",
    "seeds",
    "schedule",
    "probe",
    "notes",
)


@dataclass(frozen=True, slots=True)
class Past:
    """A trial that has ended."""

    params: Mapping[str, Value]
    value: float | None
    """Its best value of the objective; None where it failed."""


def require_plain(spec: StudySpec, tool: str) -> None:
    """Raises AdvisorError where the space holds more than ranges on a linear or a log scale, choices and fixed values."""
    for name, parameter in spec.parameters.items():
        if parameter.role == "derived":
            _refuse(tool, f"compute {name!r} from other hyperparameters")
        if parameter.when:
            _refuse(tool, f"search {name!r} only under a condition")
        if parameter.scale == "reverse-log":
            _refuse(tool, f"search {name!r} on a reverse-log scale")
    if spec.forbidden:
        _refuse(tool, "leave out forbidden regions")


def _refuse(tool: str, what: str) -> None:
    raise AdvisorError(f"{tool} cannot {what}; --points exports the study's own trials in place of its space")


def remarks(spec: StudySpec) -> Iterator[str]:
    """Lines of comment: what the study is, and what of it a search does not hold, so that the training must."""
    yield line(f"{spec.study}: {spec.goal}" if spec.goal else spec.study)
    data = spec.model_dump(mode="json", exclude_defaults=True)
    for key in _TRAINING:
        if key in data:
            values = data[key] if key == "notes" else [data[key]]
            yield from (f"Up to the training: {key}: {line(_brief(value))}" for value in values)


def _brief(value: object) -> str:
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def reason(parameter: Parameter) -> str:
    """The reason for the parameter's role and range as a comment at the end of a line of code; empty without one."""
    return f"  # {line(parameter.why)}" if parameter.why else ""


def line(text: str) -> str:
    """The text on one line, whatever it holds: it becomes a comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def constant(parameter: Parameter) -> Value | None:
    """The only value that the parameter has; None where it has several."""
    if parameter.role == "fixed":
        return parameter.value
    return parameter.options[0] if len(parameter.options) == 1 else None


def ends(parameter: Parameter) -> tuple[float, float] | tuple[int, int]:
    """The (low, high) of a range, whole where its values are."""
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.type == "int":
        return -int(-parameter.low // 1), int(parameter.high // 1)
    return parameter.low, parameter.high
