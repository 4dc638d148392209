"""Writes the configuration of a Hydra sweeper: hydra-optuna-sweeper for a search space, the basic sweeper for a list of trials."""

from __future__ import annotations

import re

from advisor.interop.exports.exporter import (
    StudyExport,
    only_possible_value,
    parameter_bounds,
    reason_comments,
    require_plain_space,
    study_comments,
    yaml_with_comments,
)
from advisor.model.errors import AdvisorError
from advisor.model.space import HyperparameterValue
from advisor.model.spec import Parameter

_UNQUOTED_WORD_PATTERN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_][\w./-]*", re.IGNORECASE)
_HYDRA_KEY_PATTERN = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def render(export: StudyExport) -> str:
    """Return a YAML configuration for Hydra's option `--config-name`. If the export contains trials to run, each Hydra job gets
    one trial under the key `trial`."""
    spec = export.spec
    for name in spec.parameters:
        if not _HYDRA_KEY_PATTERN.fullmatch(name):
            raise AdvisorError(f"Hydra cannot use {name!r} as a key; name it with letters, digits, - and .")
    lines = list(study_comments(spec))
    if export.points is not None:
        lines.append("# Run with --multirun. The key `trial` contains the hyperparameters of a job.")
        texts = (", ".join(f"{name}: {_value_text(value)}" for name, value in trial.items()) for trial in export.points)
        trials = ", ".join(f"{{{text}}}" for text in texts)
        return yaml_with_comments(lines, {"hydra": {"sweeper": {"params": {"+trial": f"choice({trials})"}}}})
    require_plain_space(spec, "a Hydra sweeper")
    lines.append("# Run with --multirun and the plugin hydra-optuna-sweeper.")
    if spec.sampler.kind == "halton":
        lines.append("# The plugin has no quasi-random search: trials are drawn at random.")
    lines += reason_comments(spec)
    sampler = "tpe" if spec.sampler.kind == "adaptive" else "random"
    sweeper = {
        "sampler": {"seed": spec.sampler.seed % 2**32},
        "direction": spec.objective.direction,
        "study_name": spec.study,
        "n_trials": spec.trials or 10,
        "params": {name: _parameter_domain(p) for name, p in spec.parameters.items()},
    }
    defaults = [{"override hydra/sweeper": "optuna"}, {"override hydra/sweeper/sampler": sampler}, "_self_"]
    return yaml_with_comments(lines, {"defaults": defaults, "hydra": {"sweeper": sweeper}})


def _parameter_domain(parameter: Parameter) -> str:
    if (value := only_possible_value(parameter)) is not None:
        return _value_text(value)
    if not parameter.numeric:
        for option in parameter.options:
            # Hydra's Optuna plugin would remove quotes around the option.
            if isinstance(option, str) and not _UNQUOTED_WORD_PATTERN.fullmatch(option):
                raise AdvisorError(
                    f"hydra-optuna-sweeper cannot choose {option!r}; make the option a plain word, or use --points"
                )
        return f"choice({', '.join(_value_text(option) for option in parameter.options)})"
    low, high = parameter_bounds(parameter)
    span = f"interval({low!r}, {high!r})"
    span = f"tag(log, {span})" if parameter.scale == "log" else span
    return f"int({span})" if parameter.type == "int" else span


def _value_text(value: HyperparameterValue) -> str:
    """Return a value in the syntax of Hydra's command line: backslashes before a quote or at the end of a text are doubled."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if "${" in value or not value.isprintable():
        raise AdvisorError(f"Hydra cannot express the value {value!r}; choose a simpler value")
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{quoted}'"
