"""The plan `rounds`: tune in short runs, then train very few of the best settings for as long as the final model is to be
trained.

Playbook: "Deciding how long to train when training is compute-bound".

*What calls for it.* The best trials still improve when they end, on training data too (`steps-compute-bound`), and the study says
how long the final runs are to be (`final_train_steps`); also a study of short runs in which nothing is left to change.

*What it does.* Round 1 trains for about 10 % of the final length: most questions can be answered there. Round 2 is very few runs
of the final length, at most three and for no more steps in all than the round before; one, and a note of what it costs, where
that round was cheaper; one as well where no learning rate is left to search, for more would be the same. What is taken over, in
the order of the playbook's trust: warmup and initialisation (very likely to transfer), the architecture (likely), the optimizer's
hyperparameters, augmentation and regularisation (they might), all fixed at their best; only the learning rate, whose schedule is
unlikely to transfer, is searched around its best. The schedule is carried over so that no long run ends in a long stretch of tiny
steps: with a linear decay, the decay stays as long as it was and the constant part before it gets the extra steps; with a cosine,
the base learning rate stays and the whole is longer.
"""

from __future__ import annotations

import math

from advisor.computed.steps import schedules
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.space import Value, as_number, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_setting, computed, digits

SHORT = 0.1
"""Length of the runs of round 1, as a share of the final length."""
MOST_LONG = 3
AROUND = math.sqrt(10)
"""How far around its best the learning rate is searched, as a factor: half a decade each way."""
ASK = "Say in the study file how long the final runs are to be (final_train_steps): the round of long runs is then planned for it."


def design(_ask: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Round 2; the question how long it is to be where the study does not say."""
    final, short = base.final_train_steps, study.spec.max_train_steps
    setting = best_setting(study, base)
    if final is None:
        return (Advise(text=ASK),)
    if short is None or not setting or final <= short:
        return ()
    budget = (study.spec.trials or base.trials or 1) * (study.spec.seeds or 1) * short
    trials = min(MOST_LONG, budget // final)
    parameters = {
        n: computed(n, setting, base) or _taken_over(n, v, base, search=trials > 1) for n, v in setting.items()
    }
    if not any(p.searched for p in parameters.values()):
        trials = 1
    schedule, said = carried(base, study, final)
    dear = f"Its {final:,} steps are more than the {budget:,} of the whole round before: decide whether that is to be spent."
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
                *([dear] if final > budget else []),
                said,
                "Keep the best checkpoint of each run, and choose among them on validation data.",
            ),
        }
    )


def carried(base: StudySpec, study: Study, final: int) -> tuple[dict[str, Value] | None, str]:
    """The schedule of the long runs, and how it follows from that of the short ones."""
    schedule = dict(base.schedule or {})
    kind = str(schedule.get("kind") or schedules.read(study, study.ranked()[0]).noted or "")
    short = study.spec.max_train_steps or final
    if "linear" in kind:
        warmup = int(as_number(schedule.get("warmup_steps", 0)))
        decay = int(as_number(schedule.get("decay_steps", short - warmup)))
        schedule |= {"kind": kind, "decay_steps": decay, "constant_steps": max(final - warmup - decay, 0)}
        return (
            schedule,
            f"Decay over the last {decay:,} steps, as in the short runs, and stay at the base learning rate before that.",
        )
    if "cosine" in kind:
        return schedule | {
            "kind": kind
        }, f"Keep the base learning rate and stretch the cosine over all {final:,} steps."
    return (
        schedule or None,
        "Tune the decay of the learning rate for the long runs: that of short ones seldom suits them.",
    )


def _taken_over(name: str, value: Value, base: StudySpec, *, search: bool) -> Parameter:
    """The hyperparameter as the long runs take it over from the best short one."""
    if search and is_learning_rate(name) and base.parameters[name].searched and as_number(value) > 0:
        low, high = digits(as_number(value) / AROUND), digits(as_number(value) * AROUND)
        why = f"the schedule is unlikely to transfer, so rates around {as_number(value):.3g}, the best of the short runs, are tried"
        equals = base.parameters[name].equals
        return Parameter(type="float", low=low, high=high, scale="log", equals=equals, why=why)
    return Parameter(role="fixed", value=value, why=f"the best of the short runs: {_trust(name)}")


def _trust(name: str) -> str:
    """How far the playbook trusts that a value of this hyperparameter is still good in longer runs."""
    if "warmup" in name.lower() or "init" in name.lower():
        return "warmup and initialisation are very likely to transfer"
    if parameter_kinds.is_regulariser(name) or parameter_kinds.is_of_optimizer(name):
        return "the optimizer and regularisation might transfer"
    return "what shapes the model is likely to transfer"
