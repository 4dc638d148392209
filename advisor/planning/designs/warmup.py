"""The design `warmup`: find the shortest warmup with which ten times the unstable learning rate trains.

Playbook: "Learning rate warmup".

*When.* The best learning rate lies right below rates that fail, or the loss rises early in training.
Numbers: `unstable_learning_rate`, the lowest that failed; `times`, the multiple of it at which training should
become possible: 10, or 100 on request.

*What.* A short study of warmups at `times` the unstable learning rate, everything else as in the best trial. The rate rises
linearly from 0 over `warmup_steps` and stays constant for twice as long. `warmup_steps` takes four log-spaced values from 10 to a
tenth of `max_train_steps`, as in the playbook's [10, 1e3, 1e4, 1e5] for a million steps. A rule of its own reads the
result: the shortest warmup that trains stably goes before the baseline and lengthens `max_train_steps`, further if it is more than
5 % of them. If the unstable rate is unknown, the warmup is searched in the next study itself.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.batch import targets
from advisor.computed.stability import warmups
from advisor.model.change import AddParameter, Advise, Change, RunPlan, SetRange
from advisor.model.prediction import significant
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_setting, fixed_parameters, learning_rate

MAX_WARMUP = 0.1
"""Maximum warmup, as a share of `max_train_steps`."""
MIN_WARMUP = 10
"""Minimum warmup, in steps."""
TIMES = 10.0
"""Peak learning rate, in multiples of the unstable one."""
CONSTANT_AFTER = 2
"""Constant steps after the warmup, in lengths of the warmup."""
LENGTHS = 4
"""Number of warmups to try."""
EVALUATIONS = 50
"""Evaluations of the longest trial; enough to see when it became unstable."""


def design(request: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """Return the study of warmups, a search within the next study if no unstable rate is known, or advice without steps."""
    steps = base.max_train_steps
    if steps is None or MAX_WARMUP * steps < 2 or targets.each_epoch(study):
        text = f"Warm the learning rate up from 0 over at least {MIN_WARMUP} optimizer steps, at most a tenth of the training."
        return (Advise(text=text),)
    rate, setting = learning_rate(base), best_setting(study, base)
    unstable = request.numbers.get("unstable_learning_rate", math.nan)
    name = warmups.parameter(base.parameters) or "warmup_steps"
    if rate is None or not setting or not math.isfinite(unstable) or warmups.is_share(base, name):
        return _within(base, name, steps)
    times = request.numbers.get("times", TIMES)
    peak, lengths = significant(times * unstable, 3), candidates(steps)
    parameters = fixed_parameters(setting, base)
    why = f"{times:.3g} times {unstable:.3g}, the lowest unstable learning rate"
    parameters[rate] = Parameter(role="fixed", value=peak, why=why)
    why = f"log-spaced from {lengths[0]} to {lengths[-1]:,}, a tenth of the {steps:,} training steps"
    parameters[name] = Parameter(role="scientific", type="int", choices=lengths, why=why)
    longest = (1 + CONSTANT_AFTER) * lengths[-1]
    return base.model_copy(
        update={
            "goal": f"Find the shortest warmup: {rate} {peak:g} must train stably",
            "parameters": parameters,
            "forbidden": (),
            "trials": len(lengths),
            "seeds": None,
            "max_train_steps": longest,
            "evaluate_every": max(longest // EVALUATIONS, 1),
            "schedule": {"kind": "warmup+constant"},
            "probe": "warmup",
            "starts_from": {"unstable_learning_rate": unstable, "times": times},
            "notes": (
                f"Raise the learning rate linearly from 0 to {peak:g} over {name} steps, then keep it constant for at least "
                f"{CONSTANT_AFTER} times as long.",
            ),
        }
    )


def candidates(steps: int) -> tuple[int, ...]:
    """Return log-spaced warmups for a training of this many steps; the longest is a tenth of it."""
    longest = int(MAX_WARMUP * steps)
    shortest = min(MIN_WARMUP, max(1, longest // 10))
    even = np.geomspace(shortest, longest, LENGTHS)
    return tuple(dict.fromkeys([*(int(significant(v, 1)) for v in even[:-1]), longest]))


def _within(base: StudySpec, name: str, steps: int) -> tuple[Change, ...]:
    """Search the warmup in the next study, on a log scale."""
    lengths = candidates(steps)
    why = f"Search for the shortest warmup that trains stably, up to {lengths[-1]:,} steps, a tenth of the training"
    low, high, kind = float(lengths[0]), float(max(lengths[-1], lengths[0] + 1)), "int"
    old = base.parameters.get(name)
    if warmups.is_share(base, name):
        low, high, kind = significant(low / steps, 3), MAX_WARMUP, "float"
    if old is not None and old.searched:
        return (SetRange(parameter=name, low=low, high=high, scale="log", why=why),)
    when = old.when if old is not None else None
    new = Parameter(type="int" if kind == "int" else "float", low=low, high=high, scale="log", when=when, why=why)
    return (AddParameter(name=name, parameter=new),)
