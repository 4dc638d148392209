"""Reads the batch sizes of trials, and finds the largest good batch size and the smallest one that ran out of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from advisor.computed.pipeline import ranks
from advisor.model import parameter_kinds
from advisor.model.space import as_number, words_of_name
from advisor.model.study import Study, Trial

_GRADIENT_ACCUMULATION_WORDS = {"accumulation", "accumulate", "accum"}
_EVALUATION_WORDS = {"eval", "evaluation", "valid", "validation", "val"}
_MAX_DISTINCT_BATCH_SIZES = 12
"""Maximum number of distinct batch sizes in a list of choices; we assume that more were drawn from a range."""
_MAX_BATCH_SIZE_CHOICES = 4
"""Maximum number of distinct batch sizes that count as a list of choices even if most were tried once and are no powers of two."""


def is_gradient_accumulation_count(name: str) -> bool:
    """Return True if a hyperparameter of this name is the number of batches over which gradients are accumulated."""
    return bool(_GRADIENT_ACCUMULATION_WORDS & set(words_of_name(name)))


def micro_batches(trial: Trial) -> float:
    """Return the number of batches over which the trial accumulates each gradient; 1 if unknown."""
    logged_count = trial.fact("micro_batches")
    if logged_count >= 1:
        return logged_count
    configured_counts = [as_number(v) for n, v in trial.params.items() if is_gradient_accumulation_count(n)]
    return next((n for n in configured_counts if n >= 1 and n.is_integer()), 1.0)


def batch_size_per_rank(trial: Trial) -> float:
    """Return the number of examples in one training batch on one rank; NaN if unknown."""
    return parameter_kinds.batch_size(trial) / micro_batches(trial) / ranks.number_of_ranks(trial)


def eval_batch_size_per_rank(trial: Trial) -> float:
    """Return the number of examples in one evaluation batch on one rank; NaN if unknown."""
    logged_size = trial.fact("eval_batch_size")
    if logged_size > 0:
        return logged_size
    for name, value in trial.params.items():
        name_words = set(words_of_name(name))
        is_batch_size = name_words & {"bs", "batchsize"} or {"batch", "size"} <= name_words
        if is_batch_size and name_words & _EVALUATION_WORDS and (logged_size := as_number(value)) > 0:
            return logged_size
    return math.nan


def usable_batch_size(study: Study, name: str, size: float) -> float:
    """Return `size` itself if the study tried a list of batch sizes, else a nearby power of two: the largest one up to
    1.1 * `size`, within the declared limits of `name`, and below every batch size that ran out of memory."""
    tried_sizes = [value for t in study.trials if (value := as_number(t.params.get(name))) > 0]
    parameter = study.spec.parameters[name]
    if parameter.options or (name in study.inferred and not are_drawn_from_range(tried_sizes)):
        return size
    lowest, highest = parameter.declared_limits
    power_of_two = 2.0 ** math.floor(math.log2(1.1 * max(size, 1.0)))
    while power_of_two > 1 and (power_of_two > highest or power_of_two >= smallest_oom_batch_size(study)):
        power_of_two /= 2
    return power_of_two if power_of_two >= lowest else size


def batch_size_by_results(study: Study, name: str) -> tuple[float | None, str]:
    """Return (value of the batch size `name` to use if throughput is unknown, or None; reason for this value, as a phrase).

    Larger batches rarely take longer per example, so return the largest value in the best quarter of the trials (at least three
    trials). If all trials saw equally many examples, return the best trial's value: larger batches took fewer steps."""
    best_first = study.ranked()
    has_equal_epochs = saw_equally_many_examples(study)
    considered = 1 if has_equal_epochs else max(math.ceil(len(best_first) / 4), 3)
    good_batch_sizes = [as_number(t.params.get(name)) for t in best_first[:considered]]
    reason = "that of the best trial; larger batches take fewer steps in equally many epochs"
    size = max((size for size in good_batch_sizes if size > 0), default=None)
    return size, reason if has_equal_epochs else "the largest among the best trials"


def saw_equally_many_examples(study: Study) -> bool:
    """Return True if trials with different batch sizes trained for equally many epochs and not for equally many steps."""
    ended_trials = [t for t in study.trials if study.ended[t.index]]
    if study.unit == "epoch":
        return True
    planned_steps = np.array([study.planned_steps(t) for t in ended_trials])
    planned_examples = planned_steps * [parameter_kinds.batch_size(t) for t in ended_trials]
    is_known = np.isfinite(planned_examples)
    if not is_known.any():
        return False
    # The last batch of an epoch may be smaller or left out.
    steps_vary, examples_vary = (np.ptp(x[is_known]) > 0.1 * x[is_known].max() for x in (planned_steps, planned_examples))
    return bool(steps_vary and not examples_vary)


def smallest_oom_batch_size(study: Study) -> float:
    """Return the smallest batch size that ran out of memory; NaN if no batch size is known to have run out of memory."""
    sizes = [parameter_kinds.batch_size(t) for t in study.trials if t.ran_out_of_memory]
    return min((s for s in sizes if s > 0), default=math.nan)


def are_drawn_from_range(sizes: Sequence[float]) -> bool:
    """Return True if the trials' batch sizes were drawn from a range: many of them are distinct, or few were tried repeatedly."""
    distinct_sizes = set(sizes)
    non_power_of_two_count = sum(not math.log2(size).is_integer() for size in distinct_sizes)
    are_rarely_repeated = len(distinct_sizes) > max(_MAX_BATCH_SIZE_CHOICES, len(sizes) / 2)
    are_unusual = are_rarely_repeated and 2 * non_power_of_two_count > len(distinct_sizes)
    return len(distinct_sizes) > _MAX_DISTINCT_BATCH_SIZES or are_unusual
