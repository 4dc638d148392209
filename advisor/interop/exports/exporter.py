"""Defines the data of an export, and helper functions for all exporters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from advisor.model.errors import AdvisorError
from advisor.model.space import HyperparameterValue
from advisor.model.spec import Parameter, StudySpec

TrialParams: TypeAlias = Sequence[Mapping[str, HyperparameterValue]]

_TRAINING_KEYS = ("max_train_steps", "final_train_steps", "evaluate_every", "checkpoints", "seeds", "schedule", "probe")
"""Keys of a study file that describe the training, which the search formats of other tools cannot express."""


@dataclass(frozen=True, slots=True)
class PastTrial:
    params: Mapping[str, HyperparameterValue]
    value: float | None
    """Best objective value of the trial; None if the trial failed."""


@dataclass(frozen=True, slots=True)
class StudyExport:
    spec: StudySpec
    points: TrialParams | None = None
    """Settings to run instead of a search. Optuna runs them first and then continues its search."""
    past: Sequence[PastTrial] = ()
    """Ended trials of the study; only for Optuna."""


def require_plain_space(spec: StudySpec, tool: str) -> None:
    """Raise AdvisorError unless the search space consists only of linear ranges, log ranges, choices and fixed values."""
    problems = []
    for name, parameter in spec.parameters.items():
        if parameter.role == "derived":
            problems.append(f"compute {name!r} from other hyperparameters")
        elif parameter.when:
            problems.append(f"search {name!r} only under a condition")
        elif parameter.scale == "reverse-log":
            problems.append(f"search {name!r} on a reverse-log scale")
    if spec.forbidden:
        problems.append("leave out forbidden regions")
    if problems:
        raise AdvisorError(f"{tool} cannot {problems[0]}; --points exports the study's own trials instead of its space")


def study_comments(spec: StudySpec) -> Iterator[str]:
    """Yield comment lines with the goal of the study, its notes, and the settings that the tool cannot express."""
    yield f"# {comment_line(f'{spec.study}: {spec.goal}' if spec.goal else spec.study)}"
    data = spec.model_dump(mode="json", exclude_defaults=True)
    for key in _TRAINING_KEYS:
        if key in data:
            value = yaml.safe_dump(data[key], default_flow_style=True, width=10**6, sort_keys=False)
            text = data[key] if isinstance(data[key], str) else value.removesuffix("\n").removesuffix("\n...")
            yield f"# To be set in the training: {key}: {comment_line(text)}"
    yield from (f"# Note: {comment_line(note)}" for note in spec.notes)


def reason_comment(parameter: Parameter) -> str:
    return f"  # {comment_line(parameter.why)}" if parameter.why else ""


def reason_comments(spec: StudySpec) -> Iterator[str]:
    for name, parameter in spec.parameters.items():
        if parameter.why:
            yield f"# {comment_line(name)}: {comment_line(parameter.why)}"


def comment_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def yaml_with_comments(lines: Sequence[str], content: object) -> str:
    return "\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, width=10**6)


def only_possible_value(parameter: Parameter) -> HyperparameterValue | None:
    """Return the only value that a parameter can have, or None if it can have several."""
    if parameter.role == "fixed":
        return parameter.value
    return parameter.options[0] if len(parameter.options) == 1 else None


def parameter_bounds(parameter: Parameter) -> tuple[float, float] | tuple[int, int]:
    """Return the ends (low, high) of the parameter's range. For an integer parameter, both ends are integers inside the range."""
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.type == "int":
        return -int(-parameter.low // 1), int(parameter.high // 1)
    return parameter.low, parameter.high
