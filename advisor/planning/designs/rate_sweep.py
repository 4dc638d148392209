"""The design `rate-sweep`: a sweep of the learning rate in short trainings, after a study that trained only one setting.

Playbook: "Choosing the initial configuration", "Deciding how long to train when training is compute-bound".

*When.* Only one setting was trained, once or with several seeds, so the effects of hyperparameters are unknown.

*What.* Ten learning rates, log-spaced over a decade below and a decade above the learning rate that was used. Each learning
rate is trained for a tenth of the steps. If the best result came in the first half of training, each trial takes at least twice
the number of steps to this result, so that the sweep also shows at which learning rates results become worse again. If the loss
blew up early, or every run diverged, the learning rates lie in the three decades below the rate that was used. All other
hyperparameters are fixed, a warmup in steps is shortened in proportion, and several learning rates keep their ratio. If the
learning rate is unknown, the study repeats the setting."""

from __future__ import annotations

import numpy as np

from advisor.computed.batch import targets
from advisor.computed.stability.loss_blowups import is_unstable_early
from advisor.model.change import SetField
from advisor.model.optimizers import TRIALS_FOR_RATE_ONLY
from advisor.model.prediction import round_significant
from advisor.model.space import MAX_FINITE_VALUE, as_number, is_learning_rate, round_up_steps
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.model.words import plain_number
from advisor.planning.base import best_trial_setting, fixed_parameters, trial_setting
from advisor.planning.designs.reseed import repeat_best_trial
from advisor.planning.designs.rounds import SHORT_RUN_LENGTH_SHARE

SWEEP_END_FACTOR = 10.0
"""Factor between the learning rate that was used and each end of the sweep."""
MIN_SWEEP_TRIAL_STEPS = 500
"""Minimum length of a sweep's trial in optimizer steps, because a tenth of a short training shows too little. This minimum is
never more than a fifth of the training."""
EVALUATIONS_PER_TRIAL = 20
"""Number of evaluations per trial: enough to see divergence and to rank the learning rates."""
LOG_RATE_ADVICE = (
    "Log the learning rate as a parameter (for example mlflow.log_param('learning_rate', rate)); then the next study can sweep it, "
    "which is the first thing to tune."
)


def is_first_single_setting(study: Study) -> bool:
    """Return whether the study is the first of its lineage and trained a single setting, once or with several seeds."""
    is_first_study = study.spec.round == 1 and study.spec.parent is None and study.spec.baseline is None
    return is_first_study and study.probe is None and not study.searched and bool(study.ranked() or _all_diverged(study))


def rate_is_too_high(study: Study) -> bool:
    """Return whether most runs of the only setting blew up early or all diverged."""
    runs = study.ranked()
    return _all_diverged(study) or 2 * sum(is_unstable_early(study, t) for t in runs) > len(runs)


def _all_diverged(study: Study) -> bool:
    return bool(study.trials) and all(t.status == "diverged" for t in study.trials)


def rate_sweep_study(study: Study, base: StudySpec) -> StudySpec | None:
    """Return a study that sweeps the learning rate. If no learning rate is known, return repeats of the setting with a note, or
    None if the setting was repeated already."""
    setting = best_trial_setting(study, base) or trial_setting(study.trials[0], base)
    rates = [n for n in setting if is_learning_rate(n) and 0 < as_number(setting[n]) < MAX_FINITE_VALUE]
    if not rates:
        repeated_study = repeat_best_trial(study, base, unnamed=True)
        return repeated_study and repeated_study.model_copy(update={"notes": (LOG_RATE_ADVICE, *repeated_study.notes)})
    name, used = rates[0], as_number(setting[rates[0]])
    below, above = SWEEP_END_FACTOR, SWEEP_END_FACTOR
    why = f"a decade on each side of {plain_number(used)}, the only rate that was tried"
    if rate_is_too_high(study):
        below, above = SWEEP_END_FACTOR**3, 0.5
        failure_text = "diverged" if _all_diverged(study) else "blew up early"
        why = f"the three decades below {plain_number(used)}, the only rate that was tried: its loss {failure_text}"
    low, high = round_significant(used / below, 3), round_significant(used * above, 3)
    parameters = fixed_parameters(setting, base)
    parameters[name] = Parameter(type="float", low=low, high=high, scale="log", why=why)
    for other in rates[1:]:
        ratio = round_significant(as_number(setting[other]) / used, 6)
        parameters[other] = Parameter(role="derived", formula=f"{{{name}}} * {ratio!r}", why=f"keeps its ratio to {name}")
    sweep = base.model_copy(update={"parameters": parameters, "trials": TRIALS_FOR_RATE_ONLY, "seeds": None})
    spec = _shorten_training(sweep, study)
    full_length = study.length(spec.final_train_steps) if spec.final_train_steps else ""
    length_text = f", {spec.max_train_steps:,} of the full {full_length} each" if spec.max_train_steps and full_length else ""
    if spec.max_train_steps and not full_length:
        length_text = f", {study.length(spec.max_train_steps)} each"
    return spec.model_copy(
        update={
            "goal": f"Sweep {name}: {plain_number(low)} to {plain_number(high)}{length_text}",
            "forbidden": (),
            "notes": (*base.notes, _what_the_sweep_shows(full_length)),
        }
    )


def _what_the_sweep_shows(full_length: str) -> str:
    """Return a note. full_length: length of the later training in words, empty if the sweep trains for the full length."""
    note = "The sweep shows which rates diverge and the best rate to within about a factor of 2."
    if not full_length:
        return note
    return (
        f"{note} Then train the two or three best for {full_length}: short runs favour rates that are fast at first. If the "
        "learning rate warms up or decays, shorten both in proportion to the training."
    )


def _shorten_training(spec: StudySpec, study: Study) -> StudySpec:
    curves = [c for t in study.ranked() if len(c := study.cost_curve(t))]
    length = spec.max_train_steps or (int(np.median([int(c.steps[-1]) for c in curves])) if curves else 0)
    if not length or study.unit in ("second", "millisecond"):
        return spec
    min_steps = 1 if targets.steps_are_epochs(study) else min(MIN_SWEEP_TRIAL_STEPS, length // 5)
    steps, why = max(round_up_steps(SHORT_RUN_LENGTH_SHARE * length), min_steps), "a tenth of the length"
    best_steps = [float(c.steps[int(np.argmin(c.values))]) for c in (c.finite for c in curves) if len(c) > 1]
    median_best_step = float(np.median(best_steps)) if best_steps else 0.0
    # If the best result came in the first half of training, the trials must reach the steps after it.
    if median_best_step <= length / 2 and (steps_past_best := min(round_up_steps(2 * median_best_step), length)) > steps:
        steps, why = steps_past_best, "twice the steps to the best result"
    spec = spec.model_copy(update={"max_train_steps": length})
    spec = _with_shorter_warmup(SetField(field="max_train_steps", value=steps, why=why).apply(spec), length)
    final = spec.final_train_steps or length
    interval = max(steps // EVALUATIONS_PER_TRIAL, 1)
    return spec.model_copy(update={"evaluate_every": interval, "final_train_steps": final if final > steps else None})


def _with_shorter_warmup(spec: StudySpec, former_length: int) -> StudySpec:
    """Return the study. If the study fixes a warmup in steps, scale the warmup in proportion to the training length."""
    for name, parameter in spec.parameters.items():
        warmup = parameter.value
        if "warmup" in name.lower() and isinstance(warmup, int) and not isinstance(warmup, bool) and warmup > 1:
            scaled_warmup = max(round(warmup * (spec.max_train_steps or former_length) / former_length), 1)
            why = f"scaled with max_train_steps, which was {former_length:,}"
            spec = spec.with_parameter(name, parameter.model_copy(update={"value": scaled_warmup, "why": why}))
    return spec
