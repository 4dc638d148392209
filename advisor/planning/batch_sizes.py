"""Chooses the batch size of the next study: a power of two, by throughput and memory if they are known.

Playbook: "Choosing the batch size". The batch size is not tuned for validation quality: if the optimizer is tuned for each size,
results hardly depend on it, but training time does.
"""

from __future__ import annotations

import math

from advisor.computed.batch import throughput
from advisor.model.space import Value, as_number
from advisor.model.spec import Parameter
from advisor.model.study import Study

MEASURE = (
    "Choose the batch size by throughput and memory before the next trials: measure them with "
    "advisor_pytorch.probes.batch_size_sweep, and again after a change of the model or the optimizer."
)
MAX_LISTED = 0.5
"""Maximum number of distinct batch sizes, as a share of the trials, for sizes that the user listed instead of a range."""


def in_next_study(study: Study, name: str, best: Value | None) -> Parameter:
    """Return the batch size of the next study: fixed or, if its values are compared or no trial has a result, a list.

    best: batch size of the best trial; None if it is unknown.
    """
    parameter = study.spec.parameters[name]
    if parameter.role == "scientific" or best is None:
        return _listed(parameter, study, name)
    fastest = throughput.recommended(study, name)
    size = fastest or as_number(best)
    value = size if _is_listed(study, name) else _power_of_two(size, parameter, throughput.ran_out(study))
    reason = _reason(study, name, fastest, value, size)
    whole = int(value) if value.is_integer() else value
    return Parameter(
        role="fixed", type=parameter.type, value=whole, limits=parameter.limits, when=parameter.when, why=reason
    )


def needs_throughput(study: Study) -> bool:
    """Return whether the study searched a batch size, but did not log the throughput to choose it by."""
    return len(throughput.speeds(study)) < 2


def _reason(study: Study, name: str, fastest: float | None, value: float, size: float) -> str:
    near = "" if value == size else f", the power of two nearest to {size:g}"
    if fastest is None:
        return (
            f"as in the best trial{near}, until you have measured the throughput: it decides, because validation quality hardly "
            "depends on the batch size if the optimizer is tuned for it"
        )
    limit = throughput.ran_out(study)
    memory = f"; {limit:g} ran out of memory" if math.isfinite(limit) else ""
    tried = [as_number(t.params[name]) for t in study.trials if name in t.params]
    what = (
        "larger batches hardly raise the throughput" if size < max(tried) else "the highest throughput that was tried"
    )
    return f"{what}{near}{memory}"


def _is_listed(study: Study, name: str) -> bool:
    """Return whether the trials used a few sizes again and again, as from a list."""
    sizes = [t.params[name] for t in study.trials if name in t.params]
    return bool(study.spec.parameters[name].options) or len(set(sizes)) <= MAX_LISTED * len(sizes)


def _power_of_two(size: float, parameter: Parameter, limit: float) -> float:
    """Return the power of two nearest to the size on a log scale, within the declared limits and below the size without memory."""
    lowest, highest = parameter.reach
    nearest = 2.0 ** round(math.log2(max(size, 1.0)))
    while nearest > 1 and (nearest > highest or nearest >= limit):
        nearest /= 2
    return nearest if nearest >= lowest else size


def _listed(parameter: Parameter, study: Study, name: str) -> Parameter:
    """Return the batch size as a list: its choices, or the powers of two in its range that do not run out of memory."""
    if not parameter.numeric:
        return parameter
    assert parameter.low is not None
    assert parameter.high is not None
    limit = throughput.ran_out(study)
    first, last = math.ceil(math.log2(max(parameter.low, 1))), math.floor(math.log2(max(parameter.high, 1)))
    sizes = tuple(2**i for i in range(first, last + 1) if not 2**i >= limit)
    if not sizes:
        return parameter
    why = f"{name} is a list of powers of two: hardware uses other sizes less well"
    if len(sizes) == 1:
        return Parameter(
            role="fixed", type="int", value=sizes[0], limits=parameter.limits, when=parameter.when, why=why
        )
    return Parameter(
        role=parameter.role, type="int", choices=sizes, limits=parameter.limits, when=parameter.when, why=why
    )
