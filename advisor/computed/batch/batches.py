"""Computes batch sizes: the number of examples that go through the model at once, in training and in evaluation."""

from __future__ import annotations

import math

from advisor.computed.pipeline import ranks
from advisor.model import parameter_kinds
from advisor.model.space import as_number, words_of_name
from advisor.model.study import Trial

_GRADIENT_ACCUMULATION_WORDS = {"accumulation", "accumulate", "accum"}
_EVALUATION_WORDS = {"eval", "evaluation", "valid", "validation", "val"}


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
    values = [as_number(v) for n, v in trial.params.items() if _is_evaluation_batch_size(set(words_of_name(n)))]
    return next((n for n in values if n > 0), math.nan)


def _is_evaluation_batch_size(words: set[str]) -> bool:
    return bool(words & {"bs", "batchsize"} or {"batch", "size"} <= words) and bool(words & _EVALUATION_WORDS)
