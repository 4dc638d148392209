"""The design `one-each`: one study for each compared value, or one study for all if there are many.

Playbook: "Creating a set of studies".

*When.* `advisor init --compare`: the study compares values of a hyperparameter.

*What.* Up to three values get a study each, with the nuisance hyperparameters of that value tuned in the same ranges and with as
many trials. The best trials of the studies are then compared. More values, and ranges of numbers, stay in one quasi-random study.
"""

from __future__ import annotations

from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec

MAX_STUDIES = 3
"""Maximum number of values with a study each; ours, the playbook says "a large number"."""


def one_each(spec: StudySpec, name: str) -> tuple[StudySpec, ...]:
    """Return one study per value of a scientific hyperparameter with its share of the trials, or the study itself."""
    options = spec.parameters[name].options if name in spec.parameters else ()
    if not 1 < len(options) <= MAX_STUDIES:
        return (spec,)
    return tuple(_with_value(spec, name, value, len(options)) for value in options)


def _with_value(spec: StudySpec, name: str, value: Value, count: int) -> StudySpec:
    why = f"one study for each of {count} values; compare their best trials"
    parameters = {name: Parameter(role="fixed", value=value, why=why)}
    for other, parameter in spec.parameters.items():
        when = dict(parameter.when or {})
        if other == name or when.get(name, value) != value:
            continue
        when.pop(name, None)
        parameters[other] = parameter.model_copy(update={"when": when or None})
    trials = None if spec.trials is None else max(spec.trials // count, 1)
    goal = f"Compare {name}: {value}, one of {count} values"
    return spec.model_copy(update={"parameters": parameters, "trials": trials, "goal": goal})
