"""Writes the configuration of a Hydra sweeper: hydra-optuna-sweeper for the space, the basic sweeper for a list of trials."""

from __future__ import annotations

import re
from typing import Any

from advisor.interop.exports.exporter import (
    Export,
    bounds,
    comments,
    require_plain,
    single_value,
    why_comments,
    with_comments,
)
from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec

_WORD = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_][\w./-]*", re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def render(export: Export) -> str:
    """Return the YAML configuration for `--config-name`. If the export has points, the key `trial` holds one trial."""
    spec = export.spec
    for name in spec.parameters:
        if not _KEY.fullmatch(name):
            raise AdvisorError(f"Hydra cannot use {name!r} as a key; name it with letters, digits, - and .")
    lines = list(comments(spec))
    if export.points is not None:
        lines.append("# Run with --multirun. The hyperparameters of a job are in the key trial.")
        trials = ", ".join(_mapping(dict(trial)) for trial in export.points)
        return with_comments(lines, {"hydra": {"sweeper": {"params": {"+trial": f"choice({trials})"}}}})
    require_plain(spec, "a Hydra sweeper")
    lines.append("# Run with --multirun and the plugin hydra-optuna-sweeper.")
    if spec.sampler.kind == "halton":
        lines.append("# The plugin has no quasi-random search: trials are drawn at random.")
    lines += why_comments(spec)
    return with_comments(lines, _optuna_sweeper(spec))


def _optuna_sweeper(spec: StudySpec) -> dict[str, Any]:
    sampler = "tpe" if spec.sampler.kind == "adaptive" else "random"
    sweeper = {
        "sampler": {"seed": spec.sampler.seed % 2**32},
        "direction": spec.objective.direction,
        "study_name": spec.study,
        "n_trials": spec.trials or 10,
        "params": {name: _domain(p) for name, p in spec.parameters.items()},
    }
    defaults = [{"override hydra/sweeper": "optuna"}, {"override hydra/sweeper/sampler": sampler}, "_self_"]
    return {"defaults": defaults, "hydra": {"sweeper": sweeper}}


def _domain(parameter: Parameter) -> str:
    if (value := single_value(parameter)) is not None:
        return _value(value)
    if not parameter.numeric:
        for option in parameter.options:
            if isinstance(option, str) and not _WORD.fullmatch(option):  # the plugin strips the option's quotes
                raise AdvisorError(
                    f"hydra-optuna-sweeper cannot choose {option!r}; make it a plain word, or use --points"
                )
        return f"choice({', '.join(_value(option) for option in parameter.options)})"
    low, high = bounds(parameter)
    span = f"interval({low!r}, {high!r})"
    span = f"tag(log, {span})" if parameter.scale == "log" else span
    return f"int({span})" if parameter.type == "int" else span


def _mapping(trial: dict[str, Value]) -> str:
    return "{" + ", ".join(f"{name}: {_value(value)}" for name, value in trial.items()) + "}"


def _value(value: Value) -> str:
    """Return a value in Hydra's grammar. In quoted text, a backslash before a quote or at the end of the text is doubled."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if "${" in value or not value.isprintable():
        raise AdvisorError(f"Hydra cannot express the value {value!r}; choose a plainer one")
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{quoted}'"
