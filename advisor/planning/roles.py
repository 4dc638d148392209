"""Assigns each hyperparameter its role in the next study (scientific, nuisance or fixed), and states the reason.

Playbook: "Identifying scientific, nuisance, and fixed hyperparameters". By default, hyperparameters of the optimizer and
regularisation strengths are nuisance parameters; the choice of optimizer, the architecture, the batch size and the training
length are fixed. A scientific hyperparameter stays scientific until a finding answers which of its values is best."""

from __future__ import annotations

import math
from collections.abc import Mapping

from advisor.computed.batch import batches, throughput
from advisor.computed.space.extension import round_inferred_range
from advisor.model import parameter_kinds
from advisor.model.change import SetRange
from advisor.model.space import HyperparameterValue, as_number, is_training_length
from advisor.model.spec import Parameter, ParameterRole
from advisor.model.study import Study

MAX_COMPARED_ARCHITECTURE_VALUES = 4
"""Maximum number of tried values for an architecture hyperparameter with an inferred range to become a list of them."""
ARCHITECTURE_COST_REASON = "it changes the cost of training and serving, so compare its values in a separate study"

MEASURE_THROUGHPUT_ADVICE = (
    "Choose the batch size by throughput and memory before the next trials: measure them with "
    "advisor_pytorch.probes.batch_size_sweep, and again after a change of the model or the optimizer."
)


def default_role(name: str) -> tuple[ParameterRole, str]:
    """Return the default role of a hyperparameter with this name, and the reason for the role."""
    if is_training_length(name):
        steps = "set it from the steps of the best results in the last study"
        return "fixed", f"training length is not tuned within a study; {steps}"
    if parameter_kinds.is_batch_size(name):
        return "fixed", "choose the batch size by throughput, not by validation quality"
    if parameter_kinds.chooses_optimizer(name):
        return "fixed", "compare optimizers in a separate study; their hyperparameters differ"
    if parameter_kinds.is_regulariser(name):
        return "nuisance", "the best strength of a regulariser changes with every other hyperparameter"
    if parameter_kinds.belongs_to_optimizer(name) or parameter_kinds.is_clipping_threshold(name):
        return "nuisance", "optimizer hyperparameters interact with every other change, so tune them in each study"
    return "fixed", ARCHITECTURE_COST_REASON


def reason_for_role(name: str, role: ParameterRole, more: str) -> str:
    """Return the standard reason for the role of a hyperparameter, if there is one, followed by the text `more`."""
    default, reason = default_role(name)
    if role == "scientific":
        return f"compared in this study; {more}"
    return f"{reason}; {more}" if role == default else more


def parameter_in_next_study(study: Study, name: str, best_setting: Mapping[str, HyperparameterValue]) -> Parameter:
    """Return the hyperparameter of the next study before findings change it. best_setting: setting of the best trial."""
    parameter = study.spec.parameters[name]
    if parameter.role in ("fixed", "derived"):
        return parameter
    if parameter_kinds.is_batch_size(name):
        return _batch_size_parameter(study, name, best_setting.get(name))
    if is_training_length(name) and name in best_setting and parameter.searched:
        reason = default_role(name)[1]
    elif parameter_kinds.searches_architecture(study, name) and parameter.role != "scientific":
        # The best trial is weak evidence of the best architecture, because only a few architectures were tried, and the trial's
        # other hyperparameters may suit only its architecture.
        return _architecture_comparison(study, name)
    else:
        is_inferred = name in study.inferred
        unchanged = "unchanged; the range was inferred from the trials" if is_inferred else "unchanged since the last round"
        reason = reason_for_role(name, parameter.role, unchanged)
        # Keep the reason that the first study states, such as a source, unless a finding has changed the range since then.
        if parameter.why and (study.spec.round == 1 or parameter.why.endswith(unchanged)):
            reason = f"{parameter.why.removesuffix(f'; {unchanged}')}; {unchanged}"
        return round_inferred_range(study, name).model_copy(update={"why": reason})
    return parameter.fix_value(best_setting[name], why=f"as in the best trial; {reason}")


def _architecture_comparison(study: Study, name: str) -> Parameter:
    """Return an architecture hyperparameter with the role "scientific". If the range of the hyperparameter was inferred from
    few tried values, compare these values."""
    parameter = study.spec.parameters[name]
    reason = "compared, because it changes the cost of training and serving; the same {what} as in the last study"
    tried_values = sorted({x for t in study.trials if (x := as_number(t.params.get(name))) and x.is_integer()})
    has_integer_range = name in study.inferred and parameter.type == "int" and parameter.numeric
    if not has_integer_range or len(tried_values) > MAX_COMPARED_ARCHITECTURE_VALUES:
        return parameter.model_copy(update={"role": "scientific", "why": reason.format(what="range")})
    values, why = tuple(map(int, tried_values)), reason.format(what="values")
    when, limits = parameter.when, parameter.limits
    return Parameter(role="scientific", type="int", choices=values, limits=limits, when=when, why=why)


def reason_against_change(change: SetRange, now: Parameter | None) -> str | None:
    """Return the reason why a range must not be changed, or None if it may be changed. now: the hyperparameter in the draft."""
    name = change.parameter
    if parameter_kinds.is_batch_size(name):
        return f"{name} is chosen by throughput and memory, not by validation quality"
    if now is None or not parameter_kinds.is_architecture_size(name) or (now.searched and now.role == "nuisance"):
        return None
    if now.low is not None and now.high is not None and now.low <= change.low and change.high <= now.high:
        return None
    return f"larger values of {name} cost more in training and serving, so they are compared only if you ask for it"


def _batch_size_parameter(study: Study, name: str, best: HyperparameterValue | None) -> Parameter:
    """Return the batch size of the next study. If batch sizes are compared or no trial has a result, it is a list of choices.
    Otherwise, it is fixed at a power of two, which is based on throughput and memory use if the trials logged them.

    Playbook: "Choosing the batch size". With a tuned optimizer, the batch size affects the training time and hardly the
    results. best: batch size of the best trial, or None if no trial has a result."""
    parameter, out_of_memory_size = study.spec.parameters[name], batches.smallest_oom_batch_size(study)
    if parameter.role == "scientific" or best is None:
        return _batch_size_choices(parameter, name, out_of_memory_size)
    fastest_size = throughput.recommended_batch_size(study, name)
    good_size, reason = batches.batch_size_by_results(study, name)
    size = fastest_size or good_size or as_number(best)
    if not size > 0:  # the choice is not a number but a word, such as "auto"
        return parameter.fix_value(best, why="as in the best trial")
    value = batches.usable_batch_size(study, name, size)
    larger = size < max(as_number(t.params[name]) for t in study.trials if name in t.params)
    if fastest_size is None:
        rounding_text = "" if value == size else f", {size:g}, as a power of two"
        why = f"{reason}{rounding_text}; once each size is tuned, choose by throughput instead"
    elif value == size:
        why = "larger batches hardly raise the throughput" if larger else "the highest throughput that was tried"
    else:
        clause = "beyond which larger batches hardly raise the throughput" if larger else "which had the highest throughput"
        why = f"the power of two nearest to {size:g}, {clause}"
    if fastest_size is not None and math.isfinite(out_of_memory_size):
        why += f"; {out_of_memory_size:g} ran out of memory"
    return parameter.fix_value(int(value) if value.is_integer() else value, why=why)


def _batch_size_choices(parameter: Parameter, name: str, limit: float) -> Parameter:
    """Return the batch size as a list of choices: the declared choices, or all powers of two in its range below `limit`."""
    if parameter.low is None or parameter.high is None:
        return parameter
    first, last = math.ceil(math.log2(max(parameter.low, 1))), math.floor(math.log2(max(parameter.high, 1)))
    sizes = tuple(2**i for i in range(first, last + 1) if not 2**i >= limit)
    if not sizes:
        return parameter
    why = f"{name} is a list of powers of two: hardware is less efficient at other sizes"
    if len(sizes) == 1:
        return Parameter(role="fixed", type="int", value=sizes[0], limits=parameter.limits, when=parameter.when, why=why)
    return Parameter(role=parameter.role, type="int", choices=sizes, limits=parameter.limits, when=parameter.when, why=why)


def lacks_throughput(study: Study) -> bool:
    """Return whether the throughput was logged for fewer than two batch sizes."""
    return len(throughput.throughput_by_batch_size(study)) < 2
