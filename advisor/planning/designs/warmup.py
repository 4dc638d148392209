"""The design `warmup`: find the shortest warmup that makes training stable at ten times the unstable learning rate.

Playbook: "Learning rate warmup".

*When.* The best learning rate is just below rates that fail, or the loss rises early in training. Numbers in the request:
`unstable_learning_rate` (the lowest rate that failed, or the best rate if that is higher) and `times` (the multiple of it at
which training should become stable: 10, or 100 on request; a rate far above the usual ones of the optimizer is not tried).

*What.* A short study of warmups at `times` the unstable learning rate, with the best trial's values for everything else. The
learning rate rises linearly from 0 over `warmup_steps` steps and then stays constant for twice as many steps. `warmup_steps`
takes four log-spaced values from 10 to a tenth of `max_train_steps`, as in the playbook's [10, 1e3, 1e4, 1e5] for a million
steps. A separate rule puts the shortest stable warmup before the baseline. If the unstable learning rate is unknown, the next
study itself searches the warmup."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.batch import targets
from advisor.computed.space import extension
from advisor.computed.stability import warmups
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.prediction import round_significant
from advisor.model.space import as_number
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.model.words import listed
from advisor.planning.base import best_trial_setting, fixed_parameters, learning_rate, searched_instead

MAX_WARMUP_SHARE = 0.1
"""Maximum length of the warmup, as a share of `max_train_steps`."""
MIN_WARMUP_STEPS = 10
PEAK_TO_UNSTABLE_RATE = 10.0
"""Ratio of the peak learning rate to the unstable learning rate."""
CONSTANT_TO_WARMUP_STEPS = 2
"""Ratio of the number of constant steps after the warmup to the number of warmup steps."""
WARMUP_LENGTHS_TO_TRY = 4
EVALUATIONS_PER_TRIAL = 50
"""Number of evaluations in the longest trial: enough to show when training becomes unstable."""


def design(request: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Return the study that compares warmup lengths. If no unstable learning rate is known, return a change: the next study
    searches the warmup. If the number of steps is unknown, return advice."""
    steps = base.max_train_steps
    if steps is None or MAX_WARMUP_SHARE * steps < 2 or targets.steps_are_epochs(study):
        text = f"Warm the learning rate up from 0 over at least {MIN_WARMUP_STEPS} steps, at most a tenth of the training."
        return (Advise(text=text),)
    rate, setting, lengths = learning_rate(base), best_trial_setting(study, base), warmup_candidates(steps)
    unstable_rate = request.numbers.get("unstable_learning_rate", math.nan)
    name = warmups.find_warmup_parameter(base.parameters) or "warmup_steps"
    if rate is None or not setting or not math.isfinite(unstable_rate) or warmups.is_warmup_share(base, name):
        why = f"Search for the shortest warmup that trains stably, up to {lengths[-1]:,} steps, a tenth of the training"
        if warmups.is_warmup_share(base, name):
            low = round_significant(lengths[0] / steps, 3)
            return (searched_instead(base, name, low, MAX_WARMUP_SHARE, "float", why),)
        return (searched_instead(base, name, lengths[0], max(lengths[-1], lengths[0] + 1), "int", why),)
    # A study of warmup lengths trains only at a rate that failed without warmup, so it shows no best rate.
    best_rate = math.nan if study.probe == "warmup" else as_number(setting.get(rate))
    # If the best trial has a higher learning rate than an unstable trial, the learning rate did not cause the instability.
    unstable_rate, rate_kind = (best_rate, "best") if best_rate > unstable_rate else (unstable_rate, "lowest unstable")
    return _warmup_study(request, study, base, rate, name, unstable_rate, rate_kind)


def _warmup_study(
    request: RunPlan, study: Study, base: StudySpec, rate: str, name: str, unstable_rate: float, rate_kind: str
) -> StudySpec:
    steps = base.max_train_steps or 1
    peak_factor = request.numbers.get("times", PEAK_TO_UNSTABLE_RATE)
    usual_range = extension.usual_rates(study, rate)
    max_peak = math.inf if usual_range is None else max(usual_range.high, extension.MIN_EXTENSION_FACTOR * unstable_rate)
    peak_factor = peak_factor if peak_factor * unstable_rate <= max_peak else round_significant(max_peak / unstable_rate, 3)
    peak_rate, lengths = round_significant(peak_factor * unstable_rate, 3), warmup_candidates(steps)
    why = f"{peak_factor:.3g} times {unstable_rate:.3g}, the {rate_kind} learning rate"
    fixed_values = fixed_parameters(best_trial_setting(study, base), base)
    parameters = {**fixed_values, rate: Parameter(role="fixed", value=peak_rate, why=why)}
    why = f"log-spaced from {lengths[0]} to {lengths[-1]:,}, a tenth of the {steps:,} training steps"
    parameters[name] = Parameter(role="scientific", type="int", choices=lengths, why=why)
    longest_steps = (1 + CONSTANT_TO_WARMUP_STEPS) * lengths[-1]
    note = (
        f"Raise the learning rate linearly from 0 to {peak_rate:g} over {name} steps, then keep it constant for at least "
        f"{CONSTANT_TO_WARMUP_STEPS} times as long."
    )
    return base.model_copy(
        update={
            "goal": f"Find the shortest warmup for {rate} {peak_rate:g}: {listed(map(str, lengths), limit=8)} steps",
            "parameters": parameters,
            "forbidden": (),
            "trials": len(lengths),
            "seeds": None,
            "max_train_steps": longest_steps,
            "evaluate_every": max(longest_steps // EVALUATIONS_PER_TRIAL, 1),
            "schedule": {"kind": "warmup+constant"},
            "probe": "warmup",
            "starts_from": {"unstable_learning_rate": unstable_rate, "times": peak_factor},
            "notes": (note,),
        }
    )


def warmup_candidates(steps: int) -> tuple[int, ...]:
    """Return log-spaced warmup lengths for a training of `steps` steps; the longest warmup takes a tenth of these steps."""
    longest_warmup = int(MAX_WARMUP_SHARE * steps)
    shortest_warmup = min(MIN_WARMUP_STEPS, max(1, longest_warmup // 10))
    exact_lengths = np.geomspace(shortest_warmup, longest_warmup, WARMUP_LENGTHS_TO_TRY)
    return tuple(dict.fromkeys([*(int(round_significant(v, 1)) for v in exact_lengths[:-1]), longest_warmup]))
