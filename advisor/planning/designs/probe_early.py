"""The plan `probe-early`: a short run at twice the best learning rate that looks at every step.

Playbook: "Identifying unstable workloads": an abbreviated run of about 500 steps at `lr = 2 * current best`, evaluating every
step.

*What calls for it.* Trials fail right above the best learning rate, and losses were logged too rarely to see whether training is
unstable at its start (`stability-edge`): some models blow up, recover and then train slowly, and evaluations that lie far apart
miss it.

*What it does.* One trial, everything as in the best one but for the learning rate. `stability-early` reads it: if the start is
unstable, the plan `warmup` follows; if not, the study that was put off for the probe is taken up again.
"""

from __future__ import annotations

from advisor.computed.batch import targets
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.space import as_number
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_setting, digits, fixed, learning_rate

STEPS = 500
TIMES = 2.0
"""How many times the best learning rate."""


def design(_ask: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """The probe; advice where no learning rate is known, or steps are not."""
    rate, setting = learning_rate(base), best_setting(study, base)
    best = as_number(setting.get(rate)) if rate is not None else float("nan")
    if rate is None or not best > 0 or targets.each_epoch(study):
        return (
            Advise(text=f"Train for {STEPS} steps at twice the best learning rate, and log the loss at every step."),
        )
    known = fixed(setting, base, "as in the best trial so far")
    high = digits(TIMES * best)
    known[rate] = Parameter(role="fixed", value=high, why=f"{TIMES:g} times {best:.3g}, the best so far")
    return base.model_copy(
        update={
            "goal": f"Look at the first steps: is {rate} {high:g} unstable early?",
            "parameters": known,
            "forbidden": (),
            "trials": 1,
            "seeds": None,
            "max_train_steps": min(STEPS, base.max_train_steps or STEPS),
            "evaluate_every": 1,
            "probe": "early-instability",
            "notes": (
                "Log the training loss at every step, as the advisor's training hook does; the learning rate stays as at the start "
                f"of a training of {base.max_train_steps:,} steps."
                if base.max_train_steps
                else "Log the training loss at every step, as the advisor's training hook does.",
            ),
        }
    )
