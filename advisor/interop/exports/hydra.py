"""Configuration of a Hydra sweeper: Optuna's for the space, the basic one for a list of trials."""

from __future__ import annotations

import re
from typing import Any

import yaml

from advisor.interop.exports.content import Trials, constant, ends, line, remarks, require_plain
from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec

_WORD = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_][\w./-]*", re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def render(spec: StudySpec, points: Trials | None) -> str:
    """The configuration, for `--config-name` or to be merged into one's own.

    The space is for the plugin hydra-optuna-sweeper. With `points` Hydra's basic sweeper runs each trial with its hyperparameters
    under the key `trial`.
    """
    for name in spec.parameters:
        if not _KEY.fullmatch(name):
            raise AdvisorError(
                f"{name!r} cannot be a key of a Hydra configuration; name it with letters, digits, - and ."
            )
    lines = [f"# {remark}" for remark in remarks(spec)]
    if points is not None:
        lines.append("# Run with --multirun; each job finds its hyperparameters in the key trial.")
        trials = ", ".join(_mapping(dict(trial)) for trial in points)
        sweeper: dict[str, Any] = {"params": {"+trial": f"choice({trials})"}}
    else:
        require_plain(spec, "a Hydra sweeper")
        lines.append("# Run with --multirun and the plugin hydra-optuna-sweeper.")
        if spec.sampler.kind == "halton":
            lines.append("# The plugin has no quasi-random search: trials are drawn at random.")
        lines += [f"# {line(name)}: {line(p.why)}" for name, p in spec.parameters.items() if p.why]
        sampler = "tpe" if spec.sampler.kind == "adaptive" else "random"
        sweeper = {
            "sampler": {"seed": spec.sampler.seed % 2**32},
            "direction": spec.objective.direction,
            "study_name": spec.study,
            "n_trials": spec.trials or 10,
            "params": {name: _domain(p) for name, p in spec.parameters.items()},
        }
        defaults = [{"override hydra/sweeper": "optuna"}, {"override hydra/sweeper/sampler": sampler}]
        return _text(lines, {"defaults": [*defaults, "_self_"], "hydra": {"sweeper": sweeper}})
    return _text(lines, {"hydra": {"sweeper": sweeper}})


def _text(lines: list[str], config: dict[str, Any]) -> str:
    return "\n".join(lines) + "\n" + yaml.safe_dump(config, sort_keys=False, width=10**6)


def _domain(parameter: Parameter) -> str:
    if (only := constant(parameter)) is not None:
        return _value(only)
    if not parameter.numeric:
        for option in parameter.options:
            if isinstance(option, str) and not _WORD.fullmatch(option):  # the plugin hands it on without its quotes
                raise AdvisorError(
                    f"hydra-optuna-sweeper cannot choose {option!r}; make it a plain word, or use --points"
                )
        return f"choice({', '.join(_value(option) for option in parameter.options)})"
    low, high = ends(parameter)
    span = f"interval({low!r}, {high!r})"
    span = f"tag(log, {span})" if parameter.scale == "log" else span
    return f"int({span})" if parameter.type == "int" else span


def _mapping(trial: dict[str, Value]) -> str:
    return "{" + ", ".join(f"{name}: {_value(value)}" for name, value in trial.items()) + "}"


def _value(value: Value) -> str:
    """A value in Hydra's grammar; text in quotes, in which a backslash before a quote or at the end needs another one."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return repr(value)
    if "${" in value or not value.isprintable():
        raise AdvisorError(f"Hydra has no way to say {value!r}; choose a plainer value")
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{quoted}'"
