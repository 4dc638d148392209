"""Writes a Weights & Biases sweep as YAML."""

from __future__ import annotations

import json
from typing import Any

from advisor.interop.exports.exporter import (
    StudyExport,
    comment_line,
    only_possible_value,
    parameter_bounds,
    reason_comments,
    require_plain_space,
    study_comments,
    yaml_with_comments,
)
from advisor.model.spec import Parameter


def render(export: StudyExport) -> str:
    """Return the W&B sweep as YAML. If the export contains trials to run, the sweep is a grid over the key `trial`, whose
    values are the trials as JSON."""
    spec = export.spec
    sweep: dict[str, Any] = {
        "name": spec.study,
        "metric": {"name": spec.objective.metric, "goal": str(spec.objective.direction)},
    }
    lines = list(study_comments(spec))
    if export.points is not None:
        lines.append("# config.trial contains the hyperparameters of a run as JSON text.")
        values = [json.dumps(dict(trial)) for trial in export.points]
        return yaml_with_comments(lines, {**sweep, "method": "grid", "parameters": {"trial": {"values": values}}})
    require_plain_space(spec, "a W&B sweep")
    if spec.sampler.kind == "halton":
        lines.append("# W&B has no quasi-random search: trials are drawn at random.")
    lines += reason_comments(spec)
    for name, parameter in spec.parameters.items():
        if parameter.type == "int" and parameter.scale == "log":
            lines.append(f"# {comment_line(name)}: W&B passes this integer as a float.")
    sweep["method"] = "bayes" if spec.sampler.kind == "adaptive" else "random"
    sweep["parameters"] = {name: _parameter_domain(p) for name, p in spec.parameters.items()}
    if spec.trials is not None:
        sweep["run_cap"] = spec.trials
    return yaml_with_comments(lines, sweep)


def _parameter_domain(parameter: Parameter) -> dict[str, Any]:
    if (value := only_possible_value(parameter)) is not None:
        return {"value": value}
    if not parameter.numeric:
        return {"values": list(parameter.options)}
    low, high = parameter_bounds(parameter)
    if parameter.type == "int" and parameter.scale == "log":
        return {"distribution": "q_log_uniform_values", "q": 1, "min": low, "max": high}
    kind = "int_uniform" if parameter.type == "int" else "log_uniform_values" if parameter.scale == "log" else "uniform"
    return {"distribution": kind, "min": low, "max": high}
