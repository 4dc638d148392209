"""The design `probe-early`: a short run at twice the best learning rate that logs every step.

Playbook: "Identifying unstable workloads": an abbreviated run of about 500 steps at `lr = 2 * current best`, evaluating every
step.

*When.* Trials fail just above the best learning rate, and losses were logged too rarely to show if training is unstable at its
start. Some models diverge early, then recover and train slowly.

*What.* One trial with the best trial's setting, but twice its learning rate. If the trial is unstable, the design `warmup`
follows; otherwise, the study that the probe delayed."""

from __future__ import annotations

from advisor.computed.batch import targets
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.prediction import round_significant
from advisor.model.space import as_number
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_trial_setting, fixed_parameters, learning_rate

PROBE_STEPS = 500
PROBE_TO_BEST_RATE = 2.0
"""Ratio of the learning rate of this probe to the best learning rate."""


def design(_request: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Return the probe, or advice if the learning rate or the number of steps is unknown."""
    rate, setting = learning_rate(base), best_trial_setting(study, base)
    best_rate = as_number(setting.get(rate)) if rate is not None else float("nan")
    if rate is None or not best_rate > 0 or targets.steps_are_epochs(study):
        return (Advise(text=f"Train for {PROBE_STEPS} steps at twice the best learning rate and log the loss at every step."),)
    parameters = fixed_parameters(setting, base)
    high = round_significant(PROBE_TO_BEST_RATE * best_rate, 3)
    parameters[rate] = Parameter(role="fixed", value=high, why=f"{PROBE_TO_BEST_RATE:g} times {best_rate:.3g}, the best so far")
    notes = ["Log the training loss at every step, as the advisor's training hook does."]
    if base.max_train_steps:
        notes.append(f"Keep the learning-rate schedule of a training of {base.max_train_steps:,} steps.")
    return base.model_copy(
        update={
            "goal": f"Look at the first steps: is {rate} {high:g} unstable early?",
            "parameters": parameters,
            "forbidden": (),
            "trials": 1,
            "seeds": None,
            "max_train_steps": min(PROBE_STEPS, base.max_train_steps or PROBE_STEPS),
            "evaluate_every": 1,
            "probe": "early-instability",
            "notes": tuple(notes),
        }
    )
