"""Limits how far a search range is extended: not to values at which trials failed, and not far beyond usual learning rates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from advisor.computed.space import failures
from advisor.model import parameter_kinds
from advisor.model.space import RangeSide, is_learning_rate, round_outwards, round_significant
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study
from advisor.model.usual_rates import SGD_RATES, UsualRates, fine_tuning_rates, is_fine_tuning, rates_of_optimizer
from advisor.model.words import setting
from advisor.stats import widening

MIN_EXTENSION_FACTOR = widening.MIN_WIDENING_FACTOR
"""Factor by which a range of learning rates is extended beyond the usual rates if its best trials lie at its end."""
_FAILED_STATUSES = ("diverged", "not_learned")


class ExtensionLimit(NamedTuple):
    """The outermost value to which one end of a range may be extended."""

    value: float
    why: str
    """Reason for the limit, as a clause such as "trials with lr of 0.3 failed"."""


def round_inferred_range(study: Study, name: str) -> Parameter:
    """Return the hyperparameter; the ends of its range are rounded outwards if the range was inferred and is not of integers."""
    parameter = study.spec.parameters[name]
    if name not in study.inferred or parameter.type == "int" or parameter.low is None or parameter.high is None:
        return parameter
    least, most = parameter.declared_limits
    width = parameter.high - parameter.low
    low = max(round_outwards(parameter.low, "low", width), least)
    high = min(round_outwards(parameter.high, "high", width), most)
    return parameter.model_copy(update={"low": low, "high": high})


def names_of_changed_ranges(study: Study, spec: StudySpec) -> set[str]:
    """Return the names of the hyperparameters that `spec` searches and `study` does not search, or searches in another range."""
    return {n for n, p in spec.searched.items() if n not in study.searched or p.domain != round_inferred_range(study, n).domain}


def extend_range(
    study: Study, name: str, side: RangeSide, step: float
) -> tuple[tuple[float, float], ExtensionLimit | None] | None:
    """Move one end of a range outwards by about `step` range widths. Return the new range and the limit that shortened the
    extension, if any; None if the range cannot be extended at all."""
    parameter = study.spec.parameters[name]
    unlimited_range = widening.widen_range(name, round_inferred_range(study, name), side, step)
    if unlimited_range is None:
        return None
    limit = find_extension_limit(study, name, side)
    if limit is None:
        return unlimited_range, None
    low, high = unlimited_range
    if side == "high" and high > limit.value:
        return ((low, limit.value), limit) if limit.value > low and limit.value > (parameter.high or low) else None
    if side == "low" and low < limit.value:
        return ((limit.value, high), limit) if limit.value < high and limit.value < (parameter.low or high) else None
    return unlimited_range, None


def find_extension_limit(study: Study, name: str, side: RangeSide) -> ExtensionLimit | None:
    limits = [_limit_before_failures(study, name, side), _usual_rate_limit(study, name, side)]
    return (min if side == "high" else max)((x for x in limits if x is not None), key=lambda x: x.value, default=None)


def _limit_before_failures(study: Study, name: str, side: RangeSide) -> ExtensionLimit | None:
    parameter = study.spec.parameters[name]
    has_failed = failures.failure_masks(study).has_failed
    failed_trials = [t for t in study.trials if has_failed[t.index]]
    failed_trials += [t for t in study.outside if t.status in _FAILED_STATUSES]
    positions = parameter.to_positions([t.params.get(name, "") for t in failed_trials])
    beyond = positions[np.isfinite(positions) & (positions > 1 if side == "high" else positions < 0)]
    if not len(beyond):
        return None
    nearest = float(beyond.min() if side == "high" else beyond.max())
    limit_value = parameter.value_at_position((nearest + (1 if side == "high" else 0)) / 2)
    why = f"a trial with {name} of {setting(parameter.value_at_position(nearest), 3)} failed"
    return ExtensionLimit(widening.round_range_end(float(limit_value), parameter), why)


def _usual_rate_limit(study: Study, name: str, side: RangeSide) -> ExtensionLimit | None:
    """Return a limit at the end of the usual learning rates, but at least a small step outside the range."""
    rates = usual_rates(study, name)
    parameter = study.spec.parameters[name]
    if rates is None or parameter.low is None or parameter.high is None or parameter.low <= 0:
        return None
    if side == "high":
        usual_end, where, value = rates.high, "above", max(rates.high, MIN_EXTENSION_FACTOR * parameter.high)
    else:
        usual_end, where, value = rates.low, "below", min(rates.low, parameter.low / MIN_EXTENSION_FACTOR)
    why = f"rates {where} {setting(usual_end)} are unusual for {rates.training}, so the step beyond the range is small"
    return ExtensionLimit(round_significant(value), why)


def usual_rates(study: Study, name: str) -> UsualRates | None:
    """Return the usual values of a learning rate, for several optimizers the range of all of them; None if `name` is no learning
    rate, or if no known optimizer uses it."""
    if not is_learning_rate(name):
        return None
    known_rates = [r for r in map(rates_of_optimizer, dict.fromkeys(_optimizer_names(study, name))) if r is not None]
    if is_fine_tuning(study) and not any(r.high == SGD_RATES.high for r in known_rates):
        return fine_tuning_rates(study)
    if not known_rates:
        return None
    widest_rates = max(known_rates, key=lambda r: r.high)
    return widest_rates._replace(low=min(r.low for r in known_rates))


def _optimizer_names(study: Study, name: str) -> Iterator[str]:
    """Yield the names of the optimizers that use this learning rate, from its name, other hyperparameters, or logged facts."""
    if rates_of_optimizer(name) is not None:
        yield name
        return
    for trial in study.trials:
        yield from (str(v) for n, v in trial.params.items() if parameter_kinds.chooses_optimizer(n))
        if optimizer := trial.facts.get("optimizer"):
            yield optimizer
