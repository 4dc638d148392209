"""Writes a search space as tuning_search_space.json, which AlgoPerf reads. JSON has no comments, so the file omits the reasons
for the search ranges."""

from __future__ import annotations

import json
import keyword
from typing import Any

from advisor.interop.exports.exporter import StudyExport, only_possible_value, parameter_bounds, require_plain_space
from advisor.model.errors import AdvisorError
from advisor.model.spec import Parameter

_MAX_INTEGERS_IN_RANGE = 1000
"""Maximum number of integers in a hyperparameter's range; the exported file lists every integer."""


def render(export: StudyExport) -> str:
    """Return the search space as JSON text. If the export contains trials to run, return these trials instead of a search
    space."""
    for name in export.spec.parameters:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise AdvisorError(f"AlgoPerf cannot use the name {name!r} as an attribute; use letters, digits and _")
    if export.points is None:
        require_plain_space(export.spec, "an AlgoPerf search space")
        space = {name: _parameter_domain(name, p) for name, p in export.spec.parameters.items()}
        return json.dumps(space, indent=2) + "\n"
    if any(set(trial) != set(export.points[0]) for trial in export.points):
        raise AdvisorError("AlgoPerf's trials must all have the same hyperparameters; fix those that only some have")
    return json.dumps([dict(trial) for trial in export.points], indent=2) + "\n"


def _parameter_domain(name: str, parameter: Parameter) -> dict[str, Any]:
    if (value := only_possible_value(parameter)) is not None:
        return {"feasible_points": [value]}
    if not parameter.numeric:
        return {"feasible_points": list(parameter.options)}
    low, high = parameter_bounds(parameter)
    if parameter.type != "int":
        return {"min": low, "max": high, "scaling": parameter.scale}
    if parameter.scale == "log" or high - low >= _MAX_INTEGERS_IN_RANGE:
        raise AdvisorError(
            f"an AlgoPerf search space cannot draw {name!r}: integers on a log scale, or more than "
            f"{_MAX_INTEGERS_IN_RANGE:,} of them; --points exports the study's own trials instead of its space"
        )
    return {"feasible_points": list(range(int(low), int(high) + 1))}
