"""Reads the metric that selects the best model, and the planned number of steps, from the runs' parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from advisor.contract import metric_direction
from advisor.model.parameter_kinds import is_batch_size
from advisor.model.space import HyperparameterValue, Params, as_number, is_training_length, words_of_name
from advisor.model.spec import Direction

_OBJECTIVE_NAME_ENDINGS = (("best", "model"), ("monitor",), ("objective",), ("target", "metric"), ("optimize", "metric"))
"""Last words in names of parameters whose value is the objective, such as metric_for_best_model."""
_STEP_COUNT_WORDS = frozenset(("steps", "step", "iterations", "iters", "updates"))
_WHOLE_BATCH_WORDS = frozenset("global total effective".split())
_ACCUMULATION_WORDS = ("accumulation", "accumulate", "accum")


def best_model_metric(params: Sequence[Mapping[str, str]], metrics: Collection[str]) -> str | None:
    """Return the metric that selects the best model in most runs. The value "loss" is ignored as a default of tools."""
    votes: Counter[str] = Counter()
    for run in params:
        named_metrics = {_find_named_metric(value, metrics) for name, value in run.items() if _is_objective(name)}
        votes.update(metric for metric in named_metrics if metric is not None)
    return min(votes, key=lambda metric: (-votes[metric], metric)) if votes else None


@lru_cache(maxsize=10_000)
def _is_objective(name: str) -> bool:
    words = tuple(words_of_name(name))
    return any(words[-len(end) :] == end for end in _OBJECTIVE_NAME_ENDINGS)


def _find_named_metric(value: str, metrics: Collection[str]) -> str | None:
    """Return the metric of this name, or else the validation metric of the same quantity."""
    if value.strip().lower() == "loss":
        return None
    if value in metrics:
        return value
    quantity = metric_direction.quantity_words(value)
    if metric_direction.split_of_metric(value) not in (None, "valid") or not quantity:
        return None
    valid_metrics = (m for m in metrics if metric_direction.split_of_metric(m) == "valid")
    similar_metrics = (m for m in valid_metrics if metric_direction.quantity_words(m) == quantity)
    return min(similar_metrics, key=lambda m: (len(m), m), default=None)


def best_model_direction(params: Sequence[Mapping[str, str]]) -> Direction | None:
    """Return the direction that `greater_is_better` or `mode` state in most runs, if any."""
    votes: Counter[Direction] = Counter()
    for run in params:
        for name, value in run.items():
            words, text = words_of_name(name), value.strip().lower()
            if words[-3:] == ["greater", "is", "better"] and text in ("true", "false"):
                votes["maximize" if text == "true" else "minimize"] += 1
            elif words[-1:] in (["mode"], ["direction"]) and text in ("max", "min", "maximize", "minimize"):
                votes["maximize" if text.startswith("max") else "minimize"] += 1
    return votes.most_common(1)[0][0] if votes else None


def max_train_steps(params: Sequence[Params], ends: Sequence[int]) -> list[int | None]:
    """Return each trial's planned optimizer steps, or None for all if most trials' last steps `ends` contradict them."""
    names = {k for p in params for k in p if is_training_length(k) and _STEP_COUNT_WORDS & set(words_of_name(k))}
    plans = [next((int(n) for k, v in p.items() if k in names and (n := parse_count(v)) >= 1), None) for p in params]
    agrees = [0.9 * p <= end + 1 <= 1.02 * p + 1 for p, end in zip(plans, ends, strict=True) if p is not None and end >= 0]
    return plans if agrees and 2 * sum(agrees) >= len(agrees) else [None] * len(plans)


def batch_size(params: Params) -> float:
    """Return the examples per optimizer step, all micro-batches together, from the trial's parameters, or NaN if unknown."""
    names = sorted(filter(is_batch_size, params), key=lambda name: (not is_whole_batch(name), len(name)))
    for name in names:
        if (size := parse_count(params[name])) >= 1:
            return size * (1 if is_whole_batch(name) else micro_batches(params))
    return math.nan


def micro_batches(params: Params) -> int:
    """Return the number of gradient accumulation steps; 1 if unknown."""
    for name, value in params.items():
        if any(word in _ACCUMULATION_WORDS for word in words_of_name(name)) and (number := parse_count(value)) >= 1:
            return int(number)
    return 1


def is_whole_batch(name: str) -> bool:
    """Return whether the parameter is the size of a whole batch, as global_batch_size, and not of a micro-batch."""
    return bool(_WHOLE_BATCH_WORDS & set(words_of_name(name)))


def parse_count(value: HyperparameterValue) -> float:
    """Return an integer value, else -1."""
    number = as_number(value)
    return number if number.is_integer() else -1.0
