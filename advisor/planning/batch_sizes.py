"""Chooses the batch size of the next study: a power of two, based on throughput and memory use if the trials logged these.

Playbook: "Choosing the batch size". The batch size is chosen for speed and not tuned for validation quality. If the optimizer
is tuned separately for each batch size, results hardly depend on the batch size, but training time does.
"""

from __future__ import annotations

import math

from advisor.computed.batch import throughput, tried_sizes
from advisor.model.space import HyperparameterValue, as_number
from advisor.model.spec import Parameter
from advisor.model.study import Study

MEASURE_THROUGHPUT_ADVICE = (
    "Choose the batch size by throughput and memory before the next trials: measure them with "
    "advisor_pytorch.probes.batch_size_sweep, and again after a change of the model or the optimizer."
)


def batch_size_parameter(study: Study, name: str, best: HyperparameterValue | None) -> Parameter:
    """Return the batch size of the next study: a list of choices if batch sizes are compared or no trial has a result, else
    fixed.

    best: batch size of the best trial; None if it is unknown.
    """
    parameter = study.spec.parameters[name]
    if parameter.role == "scientific" or best is None:
        return _batch_size_choices(parameter, study, name)
    fastest = throughput.recommended_batch_size(study, name)
    size = fastest or tried_sizes.largest_good_batch_size(study, name) or as_number(best)
    if not size > 0:  # the choice is not a number but a word, such as "auto"
        return parameter.fix_value(best, why="as in the best trial")
    value = tried_sizes.usable_batch_size(study, name, size)
    whole = int(value) if value.is_integer() else value
    return parameter.fix_value(whole, why=_batch_size_reason(study, name, fastest, value, size))


def lacks_throughput(study: Study) -> bool:
    """Return whether the study logged the throughput of fewer than two batch sizes, which are too few to choose a batch size by
    throughput."""
    return len(throughput.throughput_by_batch_size(study)) < 2


def _batch_size_reason(study: Study, name: str, fastest: float | None, value: float, size: float) -> str:
    if fastest is None:
        near = "" if value == size else f", {size:g}, as a power of two"
        return f"the largest among the best trials{near}; once each size is tuned, choose by throughput instead"
    limit = tried_sizes.smallest_oom_batch_size(study)
    memory = f"; {limit:g} ran out of memory" if math.isfinite(limit) else ""
    tried = [as_number(t.params[name]) for t in study.trials if name in t.params]
    enough = size < max(tried)
    if value == size:
        why = "larger batches hardly raise the throughput" if enough else "the highest throughput that was tried"
    else:
        had = "beyond which larger batches hardly raise the throughput" if enough else "which had the highest throughput"
        why = f"the power of two nearest to {size:g}, {had}"
    return why + memory


def _batch_size_choices(parameter: Parameter, study: Study, name: str) -> Parameter:
    """Return the batch size as a list of choices: the declared choices, or all powers of two in its range that fit into memory."""
    if not parameter.numeric:
        return parameter
    assert parameter.low is not None
    assert parameter.high is not None
    limit = tried_sizes.smallest_oom_batch_size(study)
    first, last = math.ceil(math.log2(max(parameter.low, 1))), math.floor(math.log2(max(parameter.high, 1)))
    sizes = tuple(2**i for i in range(first, last + 1) if not 2**i >= limit)
    if not sizes:
        return parameter
    why = f"{name} is a list of powers of two: hardware is less efficient at other sizes"
    if len(sizes) == 1:
        return Parameter(role="fixed", type="int", value=sizes[0], limits=parameter.limits, when=parameter.when, why=why)
    return Parameter(role=parameter.role, type="int", choices=sizes, limits=parameter.limits, when=parameter.when, why=why)
