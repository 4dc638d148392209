"""A Ray Tune search space as a Python module."""

from __future__ import annotations

from advisor.interop.exports.content import Trials, constant, ends, reason, remarks, require_plain
from advisor.model.spec import Parameter, StudySpec


def render(spec: StudySpec, points: Trials | None) -> str:
    """The module: `space`, `METRIC`, `MODE`, `NUM_SAMPLES`; with `points` each trial's hyperparameters are `config["trial"]`."""
    lines = [f"# {remark}" for remark in remarks(spec)]
    lines += [
        "from ray import tune",
        "",
        f"METRIC = {spec.objective.metric!r}",
        f"MODE = {'min' if spec.objective.direction == 'minimize' else 'max'!r}",
    ]
    if points is not None:
        lines += [
            "NUM_SAMPLES = 1",
            '# Each trial finds its hyperparameters in config["trial"].',
            'space = {"trial": tune.grid_search(',
            "    [",
        ]
        lines += [f"        {dict(trial)!r}," for trial in points]
        lines += ["    ]", ")}"]
        return "\n".join(lines) + "\n"
    require_plain(spec, "a Ray Tune space")
    lines += [
        f"NUM_SAMPLES = {spec.trials or 10}",
        f"# Ray Tune draws at random by default; the study says {spec.sampler.kind}.",
        "space = {",
    ]
    lines += [f"    {name!r}: {_domain(p)},{reason(p)}" for name, p in spec.parameters.items()]
    return "\n".join([*lines, "}"]) + "\n"


def _domain(parameter: Parameter) -> str:
    if (only := constant(parameter)) is not None:
        return repr(only)
    if not parameter.numeric:
        return f"tune.choice({list(parameter.options)!r})"
    low, high = ends(parameter)
    if parameter.type == "int":  # the upper end of Ray's ranges of integers is left out
        return f"tune.{'lograndint' if parameter.scale == 'log' else 'randint'}({low!r}, {int(high) + 1!r})"
    return f"tune.{'loguniform' if parameter.scale == 'log' else 'uniform'}({low!r}, {high!r})"
