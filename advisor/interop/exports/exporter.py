"""The interface of an exporter, and shared helpers: they reject spaces that a tool cannot express, and they write comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import yaml

from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec

Trials: TypeAlias = Sequence[Mapping[str, Value]]

_TRAINING_KEYS = ("max_train_steps", "final_train_steps", "evaluate_every", "checkpoints", "seeds", "schedule", "probe")
"""Keys of a study file that describe the training. The search formats of other tools cannot express these keys."""


@dataclass(frozen=True, slots=True)
class PastTrial:
    """A trial of the study that has ended."""

    params: Mapping[str, Value]
    value: float | None
    """Best objective value that the trial reached; None if the trial failed."""


@dataclass(frozen=True, slots=True)
class Export:
    """The study to export, with optional lists of trials."""

    spec: StudySpec
    points: Trials | None = None
    """Trials to run instead of a search; Optuna runs them first and then searches the space."""
    past: Sequence[PastTrial] = ()
    """Trials of the study that have ended; only Optuna's script can contain them."""


class Exporter(Protocol):
    """Interface of the export modules. Each module writes a study in the format of one tool."""

    def render(self, export: Export, /) -> str:
        """Return the text of the exported file; raise AdvisorError if the tool's format cannot express the study."""


def require_plain_space(spec: StudySpec, tool: str) -> None:
    """Raise AdvisorError unless the space consists only of linear ranges, log ranges, choices and fixed values."""
    for name, parameter in spec.parameters.items():
        if parameter.role == "derived":
            raise _inexpressible_error(tool, f"compute {name!r} from other hyperparameters")
        if parameter.when:
            raise _inexpressible_error(tool, f"search {name!r} only under a condition")
        if parameter.scale == "reverse-log":
            raise _inexpressible_error(tool, f"search {name!r} on a reverse-log scale")
    if spec.forbidden:
        raise _inexpressible_error(tool, "leave out forbidden regions")


def _inexpressible_error(tool: str, inexpressible: str) -> AdvisorError:
    return AdvisorError(f"{tool} cannot {inexpressible}; --points exports the study's own trials instead of its space")


def study_comments(spec: StudySpec) -> Iterator[str]:
    """Yield comment lines with the study's goal, its notes, and the training settings that the tool cannot express and the script
    must apply itself."""
    yield f"# {comment_line(f'{spec.study}: {spec.goal}' if spec.goal else spec.study)}"
    data = spec.model_dump(mode="json", exclude_defaults=True)
    for key in _TRAINING_KEYS:
        if key in data:
            yield f"# To be set in the training: {key}: {comment_line(_short_yaml(data[key]))}"
    yield from (f"# Note: {comment_line(note)}" for note in spec.notes)


def _short_yaml(value: object) -> str:
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def why_comment(parameter: Parameter) -> str:
    """Return an end-of-line comment with the reason for the parameter's range, or "" if the study states no reason."""
    return f"  # {comment_line(parameter.why)}" if parameter.why else ""


def why_comments(spec: StudySpec) -> Iterator[str]:
    """Yield one comment line for each parameter that states a reason for its range."""
    for name, parameter in spec.parameters.items():
        if parameter.why:
            yield f"# {comment_line(name)}: {comment_line(parameter.why)}"


def comment_line(text: str) -> str:
    """Return the text on one line and without control characters, as a comment requires."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def with_comments(lines: Sequence[str], content: object) -> str:
    """Return `content` as the text of a YAML file. lines: comments at the start of the file."""
    return "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, width=10**6)


def single_value(parameter: Parameter) -> Value | None:
    """Return the only value that a parameter can take, or None if it can take several values."""
    if parameter.role == "fixed":
        return parameter.value
    return parameter.options[0] if len(parameter.options) == 1 else None


def parameter_bounds(parameter: Parameter) -> tuple[float, float] | tuple[int, int]:
    """Return (low, high), the ends of the parameter's range. The ends of an integer parameter are integers within its range."""
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.type == "int":
        return -int(-parameter.low // 1), int(parameter.high // 1)
    return parameter.low, parameter.high
