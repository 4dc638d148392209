"""What runs say of themselves in their parameters: by which metric they choose their best model, how far they were to train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from advisor.model.space import Value, as_number, counts_training, words_of
from advisor.model.spec import Direction
from advisor.tracking.study import metric_names

_CHOOSING = (("best", "model"), ("monitor",), ("objective",), ("target", "metric"), ("optimize", "metric"))
"""How the name of a parameter ends whose value is the metric to choose by: metric_for_best_model, early_stopping.monitor."""
_STEPS = frozenset(("steps", "step", "iterations", "iters", "updates"))
_ACCUMULATION = ("accumulation", "accumulate", "accum")


def objective(params: Sequence[Mapping[str, str]], metrics: Collection[str]) -> str | None:
    """The metric of `metrics` that most runs say they choose their best model by; None if none says so.

    A bare "loss" says nothing: it is what tools fill in by themselves.
    """
    votes: Counter[str] = Counter()
    for run in params:
        votes.update({found for name, value in run.items() if _chooses(name) and (found := _logged_as(value, metrics))})
    return min(votes, key=lambda metric: (-votes[metric], metric)) if votes else None


def _chooses(name: str) -> bool:
    words = tuple(words_of(name))
    return any(words[-len(end) :] == end for end in _CHOOSING)


def _logged_as(said: str, metrics: Collection[str]) -> str | None:
    if said.strip().lower() == "loss":
        return None
    if said in metrics:
        return said
    alike = [
        m
        for m in metrics
        if metric_names.split_of(m) == "valid" and metric_names.quantity(m) == metric_names.quantity(said) != ()
    ]
    return min(alike, key=lambda m: (len(m), m)) if metric_names.split_of(said) in (None, "valid") and alike else None


def direction(params: Sequence[Mapping[str, str]]) -> Direction | None:
    """Whether greater or smaller is better, as most runs say in `greater_is_better` or a `mode`; None if none says so."""
    votes: Counter[Direction] = Counter()
    for run in params:
        for name, value in run.items():
            words, said = words_of(name), value.strip().lower()
            if words[-3:] == ["greater", "is", "better"] and said in ("true", "false"):
                votes["maximize" if said == "true" else "minimize"] += 1
            elif words[-1:] in (["mode"], ["direction"]) and said in ("max", "min", "maximize", "minimize"):
                votes["maximize" if said.startswith("max") else "minimize"] += 1
    return votes.most_common(1)[0][0] if votes else None


def max_train_steps(params: Sequence[Mapping[str, Value]], ends: Sequence[int]) -> list[int | None]:
    """How many optimizer steps each trial was to make, where its parameters say so and the trials' ends bear it out.

    `ends` (trials,) are the last steps logged; a number of steps by another count is not where most of the trials end.
    """
    planned = [next((int(n) for k, v in p.items() if _counts_steps(k) and (n := count(v)) >= 1), None) for p in params]
    reached = [
        0.9 * p <= end + 1 <= 1.02 * p + 1 for p, end in zip(planned, ends, strict=True) if p is not None and end >= 0
    ]
    return planned if reached and 2 * sum(reached) >= len(reached) else [None] * len(planned)


def _counts_steps(name: str) -> bool:
    return counts_training(name) and bool(_STEPS & set(words_of(name)))


def micro_batches(params: Mapping[str, Value]) -> int:
    """Over how many batches a trial accumulates its gradient, as its parameters say; 1 if they do not."""
    for name, value in params.items():
        if any(word in _ACCUMULATION for word in words_of(name)) and (number := count(value)) >= 1:
            return int(number)
    return 1


def count(value: Value) -> float:
    """The value if it is a whole number, else -1."""
    number = as_number(value)
    return number if number.is_integer() else -1.0
