"""AlgoPerf's tuning_search_space.json."""

from __future__ import annotations

import json
import keyword
from typing import Any

from advisor.interop.exports.content import Trials, constant, ends, require_plain
from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter, StudySpec

_MOST = 1000
"""Integers of a range that are listed one by one."""


def render(spec: StudySpec, points: Trials | None) -> str:
    """The search space, or with `points` the list of trials; JSON has no comments, so that all else stays in the study file."""
    for name in spec.parameters:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise AdvisorError(
                f"AlgoPerf makes attributes of the names, which {name!r} cannot be; use letters, digits and _"
            )
    if points is None:
        require_plain(spec, "an AlgoPerf search space")
        space = {name: _domain(name, p) for name, p in spec.parameters.items()}
        return json.dumps(space, indent=2) + "\n"
    if any(set(trial) != set(points[0]) for trial in points):
        raise AdvisorError("AlgoPerf's trials all have the same hyperparameters; fix those that only some trials have")
    return json.dumps([dict(trial) for trial in points], indent=2) + "\n"


def _domain(name: str, parameter: Parameter) -> dict[str, Any]:
    if (only := constant(parameter)) is not None:
        return {"feasible_points": [only]}
    if not parameter.numeric:
        return {"feasible_points": list(parameter.options)}
    low, high = ends(parameter)
    if parameter.type != "int":
        return {"min": low, "max": high, "scaling": parameter.scale}
    if parameter.scale == "log" or high - low >= _MOST:
        raise AdvisorError(
            f"an AlgoPerf search space cannot draw {name!r}, whole numbers on a log scale or more than {_MOST:,} of them; "
            "--points exports the study's own trials in place of its space"
        )
    return {"feasible_points": list(range(int(low), int(high) + 1))}
