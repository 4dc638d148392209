"""Widens the range of the learning rate if trials near the next study's batch size suggest a best rate outside it.

The best learning rate grows with the batch size. A learning-rate range based on trials of all batch sizes can therefore be too
low for a large batch size, or too high for a small one. If, among the trials near the new batch size, the best trial has the
lowest or highest learning rate, the range is extended to half a decade beyond that rate. If the best learning rate grows with
the square root of the batch size, it changes by this factor for ten times the batch size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from advisor.model import parameter_kinds
from advisor.model.prediction import round_significant
from advisor.model.space import RangeSide, as_number, is_learning_rate
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.model.usual_rates import HALF_DECADE
from advisor.model.words import clean, plain_number, setting
from advisor.planning.base import validate_spec
from advisor.planning.goals import goal_with_new_range

MAX_NEAR_BATCH_RATIO = 1.5
"""A trial is near the next study's batch size if the two batch sizes differ at most by this factor. Our choice."""
MIN_NEAR_BATCH_TRIALS = 3
"""Minimum number of trials with a result near the next study's batch size. With fewer trials, the best one would too often have
the lowest or highest learning rate by chance. Our choice."""


def with_wider_rate_range(study: Study, spec: StudySpec) -> StudySpec:
    """Return `spec`, with wider learning-rate ranges if it fixes a batch size that `study` searched and trials near this size
    suggest rates outside the ranges."""
    fixed = [n for n in study.searched if parameter_kinds.is_batch_size(n) and _fixes_parameter(spec, n)]
    rates = [n for n, p in spec.searched.items() if is_learning_rate(n) and p.scale == "log" and n in study.searched]
    for size in fixed[:1] if spec.probe is None and not spec.settings else ():
        near = list(_trials_near_batch_size(study, size, as_number(spec.parameters[size].value)))
        successful = [t for t in study.ranked() if t in near]
        for rate in rates if len(successful) >= MIN_NEAR_BATCH_TRIALS else ():
            old = spec.parameters[rate]
            new = (
                old
                if _contradicts_batch_size_trend(study, rate, size, successful[0])
                else _extend_range_beyond(old, rate, size, successful, near)
            )
            goal = goal_with_new_range(spec.goal, rate, old, new)
            if new.high != old.high or new.low != old.low:
                side = "higher" if new.high != old.high else "lower"
                goal = goal.replace(f"Narrow {clean(rate)}", f"Search {side} {clean(rate)}", 1)
            spec = spec.with_parameter(rate, new).model_copy(update={"goal": goal})
    return validate_spec(spec)


def _fixes_parameter(spec: StudySpec, name: str) -> bool:
    return name in spec.parameters and spec.parameters[name].role == "fixed"


def _trials_near_batch_size(study: Study, name: str, size: float) -> Iterator[Trial]:
    """Yield the ended trials whose batch size is within a factor of `MAX_NEAR_BATCH_RATIO` of `size`."""
    for trial in study.trials:
        tried = as_number(trial.params.get(name))
        if study.ended[trial.index] and tried > 0 and size / MAX_NEAR_BATCH_RATIO <= tried <= size * MAX_NEAR_BATCH_RATIO:
            yield trial


def _contradicts_batch_size_trend(study: Study, rate: str, size: str, near: Trial) -> bool:
    """Return whether the study's best trial, compared with the trial `near`, has a lower learning rate at a larger batch size, or a
    higher learning rate at a smaller batch size.
    """
    best = study.ranked()[0]
    rates, sizes = ([as_number(t.params.get(n)) for t in (best, near)] for n in (rate, size))
    return (rates[0] - rates[1]) * (sizes[0] - sizes[1]) < 0


def _extend_range_beyond(old: Parameter, rate: str, size: str, successful: list[Trial], near: list[Trial]) -> Parameter:
    """Return the learning rate's parameter with the new range. If the best trial of `near` has the lowest or highest rate among
    them, extend the range beyond this rate.

    successful: trials of `near` with a result, best first.
    """
    best, tried = as_number(successful[0].params.get(rate)), [as_number(t.params.get(rate)) for t in near]
    low, high, (least, most) = old.low, old.high, old.declared_limits
    assert low is not None
    assert high is not None
    outermost: dict[RangeSide, bool] = {"low": best == min(tried), "high": best == max(tried)}
    if outermost["high"]:
        high = max(high, min(round_significant(best * HALF_DECADE, 2), most))
    if outermost["low"]:
        low = min(low, max(round_significant(best / HALF_DECADE, 2), least))
    sides = [s for s in get_args(RangeSide) if outermost[s]]
    if (low, high) == (old.low, old.high) or len(sides) != 1:
        return old
    why = (
        f"the best of the {len(successful)} trials with a {clean(size)} near {setting(successful[0].params[size])} has their "
        f"{sides[0]}est rate, {plain_number(best)}, so a better rate may lie beyond"
    )
    why = f"{old.why.rstrip('.')}. {why[0].upper()}{why[1:]}" if old.why else why
    return old.model_copy(update={"low": low, "high": high, "why": why})
