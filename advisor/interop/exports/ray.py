"""Writes a search space for Ray Tune as a Python module."""

from __future__ import annotations

from advisor.interop.exports.exporter import (
    StudyExport,
    only_possible_value,
    parameter_bounds,
    reason_comment,
    require_plain_space,
    study_comments,
)
from advisor.model.spec import Parameter


def render(export: StudyExport) -> str:
    """Return the text of a Python module with `space`, `METRIC`, `MODE` and `NUM_SAMPLES`. If the export contains trials to
    run, `config["trial"]` is the trial to run."""
    spec = export.spec
    lines = [
        *study_comments(spec),
        "from ray import tune",
        "",
        f"METRIC = {spec.objective.metric!r}",
        f"MODE = {'min' if spec.objective.direction == 'minimize' else 'max'!r}",
    ]
    if export.points is not None:
        lines += [
            "NUM_SAMPLES = 1",
            '# config["trial"] contains the hyperparameters of a trial.',
            'space = {"trial": tune.grid_search(',
            "    [",
            *(f"        {dict(trial)!r}," for trial in export.points),
            "    ]",
            ")}",
        ]
    else:
        require_plain_space(spec, "a Ray Tune space")
        lines += [
            f"NUM_SAMPLES = {spec.trials or 10}",
            f"# Ray Tune draws at random by default; the study's sampler is {spec.sampler.kind}.",
            "space = {",
            *(f"    {name!r}: {_parameter_domain(p)},{reason_comment(p)}" for name, p in spec.parameters.items()),
            "}",
        ]
    return "\n".join(lines) + "\n"


def _parameter_domain(parameter: Parameter) -> str:
    if (value := only_possible_value(parameter)) is not None:
        return repr(value)
    if not parameter.numeric:
        return f"tune.choice({list(parameter.options)!r})"
    low, high = parameter_bounds(parameter)
    if parameter.type == "int":  # Ray excludes the upper end of integer ranges
        return f"tune.{'lograndint' if parameter.scale == 'log' else 'randint'}({low!r}, {int(high) + 1!r})"
    return f"tune.{'loguniform' if parameter.scale == 'log' else 'uniform'}({low!r}, {high!r})"
