"""The design `rounds`: tune in short runs, then train a few of the best settings for the final number of steps.

Playbook: "Deciding how long to train when training is compute-bound".

*When.* The best trials still improve at their end, also on training data, and the study states the final number of
steps (`final_train_steps`). Also if nothing is left to change in a study of short runs.

*What.* Round 1 trains for about 10 % of the final length, which answers most questions. Round 2 has at most three runs of the final
length, which together take at most as many steps as the previous round. If one long run costs more than the previous round, or if
no learning rate is searched, round 2 has a single run; in the first case with a note about its cost. Only the learning rate is
searched, around its best value, because schedules rarely transfer; the playbook expects all other best values to transfer. So that
runs do not end with many tiny steps, a linear decay keeps its length after a longer constant part; a cosine is stretched.
"""

from __future__ import annotations

import math

from advisor.computed.steps import schedules
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.prediction import significant
from advisor.model.space import Value, as_number, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_setting, computed_parameter

SHORT = 0.1
"""Length of the short runs as a share of the final length."""
MAX_LONG_RUNS = 3
FACTOR = math.sqrt(10)
"""Ratio of each end of the learning-rate range to the best learning rate: half a decade in each direction."""
ASK = (
    "Set final_train_steps in the study file to the length of the final training, so that the long runs can be planned."
)


def design(_request: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Return the study of long runs; if the study does not state the final length, return the advice to state it."""
    final, short = base.final_train_steps, study.spec.max_train_steps
    setting = best_setting(study, base)
    if final is None:
        return (Advise(text=ASK),)
    if short is None or not setting or final <= short:
        return ()
    budget = (study.spec.trials or base.trials or 1) * (study.spec.seeds or 1) * short
    trials = min(MAX_LONG_RUNS, budget // final)
    parameters = {
        n: computed_parameter(n, setting, base) or _transferred(n, v, base, search=trials > 1)
        for n, v in setting.items()
    }
    if not any(p.searched for p in parameters.values()):
        trials = 1
    schedule, schedule_note = _long_schedule(base, study, final)
    expensive = f"The {final:,} steps of this run exceed the {budget:,} of the whole last round: decide whether it is worth them."
    return base.model_copy(
        update={
            "goal": f"Train the final model: {trials} long run{'s' if trials > 1 else ''} of the best setting",
            "parameters": parameters,
            "forbidden": (),
            "trials": trials,
            "seeds": None,
            "max_train_steps": final,
            "evaluate_every": base.evaluate_every and max(round(base.evaluate_every * final / short), 1),
            "schedule": schedule,
            "final_train_steps": None,
            "notes": (
                *([expensive] if final > budget else []),
                schedule_note,
                "Keep the best checkpoint of each run and choose among them on validation data.",
            ),
        }
    )


def _long_schedule(base: StudySpec, study: Study, final: int) -> tuple[dict[str, Value] | None, str]:
    """Return the schedule of the long runs, and a note for the user that explains it."""
    schedule = dict(base.schedule or {})
    kind = str(schedule.get("kind") or schedules.read(study, study.ranked()[0]).noted or "")
    short = study.spec.max_train_steps or final
    if "linear" in kind:
        warmup = int(as_number(schedule.get("warmup_steps", 0)))
        decay = int(as_number(schedule.get("decay_steps", short - warmup)))
        schedule |= {"kind": kind, "decay_steps": decay, "constant_steps": max(final - warmup - decay, 0)}
        note = f"Keep the base learning rate, then decay it over the last {decay:,} steps, as in the short runs."
        return schedule, note
    if "cosine" in kind:
        return schedule | {
            "kind": kind
        }, f"Stretch the cosine over all {final:,} steps, with the same base learning rate."
    return (
        schedule or None,
        "Tune the learning-rate decay for the long runs; the decay of short runs rarely suits them.",
    )


def _transferred(name: str, value: Value, base: StudySpec, *, search: bool) -> Parameter:
    """Return the hyperparameter for the long runs, based on its value in the best short run."""
    if search and is_learning_rate(name) and base.parameters[name].searched and as_number(value) > 0:
        low, high = significant(as_number(value) / FACTOR, 3), significant(as_number(value) * FACTOR, 3)
        why = f"schedules rarely transfer, so search around {as_number(value):.3g}, the best of the short runs"
        equals = base.parameters[name].equals
        return Parameter(type="float", low=low, high=high, scale="log", equals=equals, why=why)
    return base.fixed_at(name, value, why=f"the best of the short runs: {_trust(name)}")


def _trust(name: str) -> str:
    """Return how likely, according to the playbook, a value of this hyperparameter transfers to longer runs."""
    if "warmup" in name.lower() or "init" in name.lower():
        return "warmup and initialisation are very likely to transfer"
    if parameter_kinds.is_regulariser(name) or parameter_kinds.is_of_optimizer(name):
        return "the optimizer and regularisation might transfer"
    return "the architecture is likely to transfer"
