"""Computes the batch sizes of trials, and which ones a study tried, found good, or could not fit into memory."""

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
"""With more distinct batch sizes than this, we assume that they were drawn from a range and not from a list."""
_MAX_BATCH_SIZE_CHOICES = 4
"""Up to this many distinct batch sizes count as a list of choices, even if most were tried once and are not powers of two."""


def is_gradient_accumulation_count(name: str) -> bool:
    """Return True if a hyperparameter of this name is the number of batches over which gradients are accumulated."""
    return bool(_GRADIENT_ACCUMULATION_WORDS & set(words_of_name(name)))


def micro_batches(trial: Trial) -> float:
    """Return the number of batches over which the trial accumulates each gradient; 1 if unknown."""
    number = trial.fact("micro_batches")
    if number >= 1:
        return number
    values = [as_number(v) for n, v in trial.params.items() if is_gradient_accumulation_count(n)]
    return next((n for n in values if n >= 1 and n.is_integer()), 1.0)


def batch_size_per_rank(trial: Trial) -> float:
    """Return the number of examples in one training batch on one rank; NaN if unknown."""
    return parameter_kinds.batch_size(trial) / micro_batches(trial) / ranks.number_of_ranks(trial)


def eval_batch_size_per_rank(trial: Trial) -> float:
    """Return the number of examples in one evaluation batch on one rank; NaN if unknown."""
    size = trial.fact("eval_batch_size")
    if size > 0:
        return size
    for name, value in trial.params.items():
        words = set(words_of_name(name))
        is_batch_size = words & {"bs", "batchsize"} or {"batch", "size"} <= words
        if is_batch_size and words & _EVALUATION_WORDS and (size := as_number(value)) > 0:
            return size
    return math.nan


def usable_batch_size(study: Study, name: str, size: float) -> float:
    """Return a batch size that the study can use: `size` itself if the study tried a list of sizes, else the largest power of
    two that exceeds it by at most a tenth, within the declared limits of `name`, and smaller than all that ran out of memory.
    """
    tried = [value for t in study.trials if (value := as_number(t.params.get(name))) > 0]
    parameter = study.spec.parameters[name]
    if parameter.options or (name in study.inferred and not are_drawn_from_range(tried)):
        return size
    lowest, highest = parameter.declared_limits
    nearest = 2.0 ** math.floor(math.log2(1.1 * max(size, 1.0)))
    while nearest > 1 and (nearest > highest or nearest >= smallest_oom_batch_size(study)):
        nearest /= 2
    return nearest if nearest >= lowest else size


def batch_size_by_results(study: Study, name: str) -> tuple[float | None, str]:
    """Return (the batch size, hyperparameter `name`, to use if throughput is unknown; the reason as a phrase). The size is None
    if it is unknown.

    Larger batches rarely take longer per example, so it is the largest batch size among the best quarter of the trials, at
    least three. If all trials saw equally many examples, larger batches took fewer steps. A large batch is then at a
    disadvantage until it trains for more epochs, so it is the batch size of the best trial.
    """
    ranked = study.ranked()
    equal_epochs = saw_equally_many_examples(study)
    good = [as_number(t.params.get(name)) for t in ranked[: 1 if equal_epochs else max(math.ceil(len(ranked) / 4), 3)]]
    reason = "that of the best trial; larger batches take fewer steps in equally many epochs"
    size = max((size for size in good if size > 0), default=None)
    return size, reason if equal_epochs else "the largest among the best trials"


def saw_equally_many_examples(study: Study) -> bool:
    """Return whether trials with different batch sizes trained for equally many epochs, not for equally many steps."""
    ended = [t for t in study.trials if study.ended[t.index]]
    if study.unit == "epoch":
        return True
    lengths = np.array([study.planned_steps(t) for t in ended])
    examples = lengths * [parameter_kinds.batch_size(t) for t in ended]
    known = np.isfinite(examples)
    if not known.any():
        return False
    # The last batch of an epoch may be smaller or left out.
    steps_vary, examples_vary = (np.ptp(x[known]) > 0.1 * x[known].max() for x in (lengths, examples))
    return bool(steps_vary and not examples_vary)


def smallest_oom_batch_size(study: Study) -> float:
    """Return the smallest batch size that ran out of memory; NaN if no batch size is known to have run out of memory."""
    sizes = [parameter_kinds.batch_size(t) for t in study.trials if t.ran_out_of_memory]
    return min((s for s in sizes if s > 0), default=math.nan)


def are_drawn_from_range(sizes: Sequence[float]) -> bool:
    """Return True if the trials' batch sizes were drawn from a range: many of them are distinct, or few were tried repeatedly."""
    distinct = set(sizes)
    no_powers_of_two = sum(not math.log2(size).is_integer() for size in distinct)
    rarely_repeated = len(distinct) > max(_MAX_BATCH_SIZE_CHOICES, len(sizes) / 2) and 2 * no_powers_of_two > len(distinct)
    return len(distinct) > _MAX_DISTINCT_BATCH_SIZES or rarely_repeated
