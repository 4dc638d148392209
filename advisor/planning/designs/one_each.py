"""The plan `one-each`: one study for each value that is compared, or a combined one where there are many.

Playbook: "Creating a set of studies".

*What calls for it.* `advisor init --compare`: the study is to tell values of a hyperparameter apart.

*What it does.* Up to three values get a study each, the nuisance hyperparameters that exist under the value tuned in the same
ranges and with as many trials: the best trials of the studies are then compared. More values than that stay in one space,
quasi-random, so that each is sampled as often; so does a range of numbers, which has no end of them.
"""

from __future__ import annotations

from advisor.model.space import Value
from advisor.model.spec import Parameter, StudySpec

MOST = 3
"""Values that get a study each; more are sampled in one. Ours: "a large number" in the playbook."""


def one_each(spec: StudySpec, name: str) -> tuple[StudySpec, ...]:
    """A study for each value of a scientific hyperparameter, with its share of the trials; the study itself if they are many."""
    options = spec.parameters[name].options if name in spec.parameters else ()
    if not 1 < len(options) <= MOST:
        return (spec,)
    return tuple(_with_value(spec, name, value, len(options)) for value in options)


def _with_value(spec: StudySpec, name: str, value: Value, of: int) -> StudySpec:
    reason = f"one study for each of its {of} values; their best trials are compared"
    kept = {name: Parameter(role="fixed", value=value, why=reason)}
    for other, parameter in spec.parameters.items():
        when = dict(parameter.when or {})
        if other == name or when.get(name, value) != value:
            continue
        when.pop(name, None)
        kept[other] = parameter.model_copy(update={"when": when or None})
    trials = None if spec.trials is None else max(spec.trials // of, 1)
    goal = f"Compare {name}, {value} to begin with: tune what goes with it"
    return spec.model_copy(update={"parameters": kept, "trials": trials, "goal": goal})
