"""The design `one-each`: a separate study for each compared value, or a single study if there are many values.

Playbook: "Creating a set of studies".

*When.* The user runs `advisor init --compare` to compare values of a hyperparameter.

*What.* Up to three values get a separate study each, in which the nuisance hyperparameters are tuned in the same ranges with
the same number of trials. After these studies, the user compares their best trials. If there are more than three values, or a
numeric range, all values share one study."""

from __future__ import annotations

from advisor.model.spec import Parameter, StudySpec

MAX_SEPARATE_STUDIES = 3
"""Maximum number of compared values at which each value gets a separate study. The playbook says "a large number"."""


def one_study_per_value(spec: StudySpec, name: str, *, limit: int = MAX_SEPARATE_STUDIES) -> tuple[StudySpec, ...]:
    """Return one study per value, each with an equal share of the trials; the given study for more than `limit` values."""
    options = spec.parameters[name].options if name in spec.parameters else ()
    if not 1 < len(options) <= limit:
        return (spec,)
    trials = None if spec.trials is None else max(spec.trials // len(options), 1)
    why = f"one study for each of {len(options)} values; compare their best trials"
    studies = []
    for value in options:
        parameters = {name: Parameter(role="fixed", value=value, why=why)}
        for other, parameter in spec.parameters.items():
            conditions = dict(parameter.when or {})
            if other != name and conditions.pop(name, value) == value:
                parameters[other] = parameter.model_copy(update={"when": conditions or None})
        goal = f"Compare {name}: {value}, one of {len(options)} values"
        studies.append(spec.model_copy(update={"parameters": parameters, "trials": trials, "goal": goal}))
    return tuple(studies)
