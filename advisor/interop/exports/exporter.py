"""The contract of an export, and what all exports share: refusing spaces that a tool cannot express, and comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import yaml

from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec

Trials: TypeAlias = Sequence[Mapping[str, Value]]

_TRAINING_KEYS = (
    "max_train_steps",
    "final_train_steps",
    "evaluate_every",
    "checkpoints",
    "seeds",
    "schedule",
    "probe",
    "notes",
)
"""What a study file says of the training, and the files of other tools cannot."""


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial that has ended."""

    params: Mapping[str, Value]
    value: float | None
    """Its best value of the objective; None if it failed."""


@dataclass(frozen=True, slots=True)
class Export:
    """What to export."""

    spec: StudySpec
    points: Trials | None = None
    """Trials to run instead of the space. Optuna runs them before it draws from the space."""
    past: Sequence[PastTrial] = ()
    """Trials so far. Only Optuna accepts them."""


class Exporter(Protocol):
    """Writes a study in the format of one tool; each module of a tool is one."""

    def render(self, export: Export, /) -> str:
        """Return the text of the file; raise AdvisorError for what the tool cannot express."""


def require_plain(spec: StudySpec, tool: str) -> None:
    """Raise AdvisorError unless the space has only linear and log ranges, choices and fixed values."""
    for name, parameter in spec.parameters.items():
        if parameter.role == "derived":
            raise _inexpressible(tool, f"compute {name!r} from other hyperparameters")
        if parameter.when:
            raise _inexpressible(tool, f"search {name!r} only under a condition")
        if parameter.scale == "reverse-log":
            raise _inexpressible(tool, f"search {name!r} on a reverse-log scale")
    if spec.forbidden:
        raise _inexpressible(tool, "leave out forbidden regions")


def _inexpressible(tool: str, what: str) -> AdvisorError:
    return AdvisorError(f"{tool} cannot {what}; --points exports the study's own trials instead of its space")


def comments(spec: StudySpec) -> Iterator[str]:
    """Yield comment lines with the study's goal and the settings that the training must apply itself."""
    yield f"# {one_line(f'{spec.study}: {spec.goal}' if spec.goal else spec.study)}"
    data = spec.model_dump(mode="json", exclude_defaults=True)
    for key in _TRAINING_KEYS:
        if key in data:
            values = data[key] if key == "notes" else [data[key]]
            yield from (f"# To be set in the training: {key}: {one_line(_short_yaml(value))}" for value in values)


def _short_yaml(value: object) -> str:
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def why_comment(parameter: Parameter) -> str:
    """Return the reason for the parameter's range as a comment at the end of a line of code, or ""."""
    return f"  # {one_line(parameter.why)}" if parameter.why else ""


def why_comments(spec: StudySpec) -> Iterator[str]:
    """Yield the reasons for the parameters' ranges as comment lines."""
    for name, parameter in spec.parameters.items():
        if parameter.why:
            yield f"# {one_line(name)}: {one_line(parameter.why)}"


def one_line(text: str) -> str:
    """Return the text on one line without control characters, so that it is safe in a comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def with_comments(lines: Sequence[str], content: object) -> str:
    """Return a YAML file with comment lines at its top."""
    return "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, width=10**6)


def single_value(parameter: Parameter) -> Value | None:
    """Return the only value of the parameter, or None if it has several."""
    if parameter.role == "fixed":
        return parameter.value
    return parameter.options[0] if len(parameter.options) == 1 else None


def bounds(parameter: Parameter) -> tuple[float, float] | tuple[int, int]:
    """Return (low, high) of a range, as integers for integer parameters."""
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.type == "int":
        return -int(-parameter.low // 1), int(parameter.high // 1)
    return parameter.low, parameter.high
