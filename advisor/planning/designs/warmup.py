"""The plan `warmup`: the fewest warmup steps with which a learning rate ten times the unstable one trains.

Playbook: "Learning rate warmup".

*What calls for it.* The best learning rate lies right below rates that fail (`stability-edge`), or the loss rises early in
training (`stability-early`). Numbers: `unstable_learning_rate`, the lowest that failed; `times`, how far above it training is to
become possible: 10, or 100 on request (`raise_to` of `stability-edge`).

*What it does.* A short study of warmups alone, at `times` the unstable learning rate, everything else as in the best trial: the
rate rises in a straight line from 0 over `warmup_steps` and stays constant for twice as many. `warmup_steps` takes four values
over the orders of magnitude from 10 to a tenth of `max_train_steps`, the playbook's [10, 1e3, 1e4, 1e5] for a million steps. The
rule `warmup-shortest` reads the result: the shortest that trains stably goes before the baseline, `max_train_steps` grows by it,
and grows further where it is more than 5 % of them. Where the unstable rate is not known, the warmup is searched in the study
itself.
"""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.batch import targets
from advisor.computed.stability import warmups
from advisor.model.change import AddParameter, Advise, Change, RunPlan, SetRange
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.planning.base import best_setting, digits, fixed, learning_rate

LONGEST = 0.1
"""Longest warmup, as a share of `max_train_steps`."""
SHORTEST = 10
"""Shortest warmup, in steps."""
TIMES = 10.0
"""How many times the unstable learning rate the peak is to be."""
AFTER = 2
"""Constant steps after the warmup, in lengths of the warmup."""
VALUES = 4
EVALUATIONS = 50
"""Evaluations over the longest trial, enough to see when it became unstable."""


def design(ask: RunPlan, study: Study, base: StudySpec) -> StudySpec | tuple[Change, ...]:
    """The study of warmups; a search within the study to follow where no rate is known, advice where no length is."""
    steps = base.max_train_steps
    if steps is None or LONGEST * steps < 2 or targets.each_epoch(study):
        text = f"Warm the learning rate up from 0 over {SHORTEST} optimizer steps or more, at most a tenth of the training."
        return (Advise(text=text),)
    rate, setting = learning_rate(base), best_setting(study, base)
    unstable = ask.numbers.get("unstable_learning_rate", math.nan)
    name = warmups.parameter(base.parameters) or "warmup_steps"
    if rate is None or not setting or not math.isfinite(unstable) or warmups.is_share(base, name):
        return _within(base, name, steps)
    times = ask.numbers.get("times", TIMES)
    peak = digits(times * unstable)
    lengths = candidates(steps)
    known = fixed(setting, base, "as in the best trial so far")
    why = f"{times:.3g} times {unstable:.3g}, the lowest learning rate that was unstable"
    known[rate] = Parameter(role="fixed", value=peak, why=why)
    said = f"Orders of magnitude from {lengths[0]} to {lengths[-1]:,}, at most a tenth of the {steps:,} steps of the training"
    known[name] = Parameter(role="scientific", type="int", choices=lengths, why=said)
    longest = (1 + AFTER) * lengths[-1]
    return base.model_copy(
        update={
            "goal": f"Find the shortest warmup: {rate} {peak:g} must train stably",
            "parameters": known,
            "forbidden": (),
            "trials": len(lengths),
            "seeds": None,
            "max_train_steps": longest,
            "evaluate_every": max(longest // EVALUATIONS, 1),
            "schedule": {"kind": "warmup+constant"},
            "probe": "warmup",
            "starts_from": {"unstable_learning_rate": unstable, "times": times},
            "notes": (
                f"Raise the learning rate in a straight line from 0 to {peak:g} over {name} steps, then keep it constant; a trial "
                f"may end {AFTER} times its {name} after that.",
            ),
        }
    )


def candidates(steps: int) -> tuple[int, ...]:
    """Warmups to try in a training of so many steps, evenly spaced in their orders of magnitude; the longest is a tenth of it."""
    longest = int(LONGEST * steps)
    shortest = min(SHORTEST, max(1, longest // 10))
    even = np.geomspace(shortest, longest, VALUES)
    return tuple(dict.fromkeys([*(int(digits(v, 1)) for v in even[:-1]), longest]))


def _within(base: StudySpec, name: str, steps: int) -> tuple[Change, ...]:
    """Search the warmup along with everything else, on a log scale."""
    lengths = candidates(steps)
    why = f"The shortest warmup that trains stably is wanted, of up to {lengths[-1]:,} steps, a tenth of the training"
    low, high, kind = float(lengths[0]), float(max(lengths[-1], lengths[0] + 1)), "int"
    old = base.parameters.get(name)
    if warmups.is_share(base, name):
        low, high, kind = digits(low / steps), LONGEST, "float"
    if old is not None and old.searched:
        return (SetRange(parameter=name, low=low, high=high, scale="log", why=why),)
    when = old.when if old is not None else None
    new = Parameter(type="int" if kind == "int" else "float", low=low, high=high, scale="log", when=when, why=why)
    return (AddParameter(name=name, parameter=new),)
