"""A Weights & Biases sweep as YAML."""

from __future__ import annotations

import json
from typing import Any

import yaml

from advisor.interop.exports.content import Trials, constant, ends, line, remarks, require_plain
from advisor.model.spec import Parameter, StudySpec


def render(spec: StudySpec, points: Trials | None) -> str:
    """The sweep; with `points` it is a grid over `trial`, whose values are JSON objects of hyperparameters."""
    goal = "minimize" if spec.objective.direction == "minimize" else "maximize"
    sweep: dict[str, Any] = {"name": spec.study, "metric": {"name": spec.objective.metric, "goal": goal}}
    lines = [f"# {remark}" for remark in remarks(spec)]
    if points is not None:
        lines.append("# Each run finds its hyperparameters in the JSON text of config.trial.")
        sweep |= {"method": "grid", "parameters": {"trial": {"values": [json.dumps(dict(t)) for t in points]}}}
    else:
        require_plain(spec, "a W&B sweep")
        method = "bayes" if spec.sampler.kind == "adaptive" else "random"
        if spec.sampler.kind == "halton":
            lines.append("# W&B has no quasi-random search: trials are drawn at random.")
        for name, parameter in spec.parameters.items():
            lines += [f"# {line(name)}: {line(parameter.why)}"] if parameter.why else []
            if parameter.type == "int" and parameter.scale == "log":
                lines.append(f"# {line(name)} arrives as a float of a whole number.")
        sweep |= {"method": method, "parameters": {name: _domain(p) for name, p in spec.parameters.items()}}
        sweep |= {"run_cap": spec.trials} if spec.trials is not None else {}
    return "\n".join(lines) + "\n" + yaml.safe_dump(sweep, sort_keys=False, width=10**6)


def _domain(parameter: Parameter) -> dict[str, Any]:
    if (only := constant(parameter)) is not None:
        return {"value": only}
    if not parameter.numeric:
        return {"values": list(parameter.options)}
    low, high = ends(parameter)
    if parameter.type == "int" and parameter.scale == "log":
        return {"distribution": "q_log_uniform_values", "q": 1, "min": low, "max": high}
    kind = "int_uniform" if parameter.type == "int" else "log_uniform_values" if parameter.scale == "log" else "uniform"
    return {"distribution": kind, "min": low, "max": high}
