"""Computes the range that `space-boundary` recommends: one end moves outwards, and the opposite end may move inwards."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from advisor.computed.space import extension, promising
from advisor.computed.space.settings import Settings
from advisor.model.space import RangeSide, as_number, round_outwards
from advisor.model.study import Study
from advisor.model.words import plain_number, setting
from advisor.stats.boundaries import AxisResponse
from advisor.stats.surface import compress_costs
from advisor_rules.space import _regularisers

MIN_POOR_SETTINGS = 3
"""Minimum number of poor settings at the far side of a range at which this side is left out of the new range. Our choice."""

_USUAL_RATES_MARGIN = 10.0
"""Factor by which the new end of a range of learning rates lies inside the usual rates, if the old range lay entirely outside
them."""


class ExtendedRange(NamedTuple):
    low: float
    high: float
    why: str


def extend_range_end(study: Study, tried: Settings, name: str, side: RangeSide, response: AxisResponse) -> ExtendedRange | None:
    domain = study.spec.parameters[name]
    step = response.low_turn_distance if side == "low" else response.high_turn_distance
    best = float(tried.numeric[name][int(np.nanargmin(tried.costs))])
    if math.isfinite(best):  # The best trial may lie outside the declared range.
        step = max(step, -best if side == "low" else best - 1)
    extended = extension.extend_range(study, name, side, step)
    if extended is None:
        return None
    (low, high), limit = extended
    if limit is None and (usual := _limit_from_usual_rates(study, name, side)) is not None:
        low, high = (min(low, usual.value), high) if side == "low" else (low, max(high, usual.value))
        limit = usual if usual.value in (low, high) else None
    if side == "low" and (off_value := _regularisers.off_value_below(name, domain)) is not None:
        low, limit = off_value, extension.ExtensionLimit(off_value, f"a study without {name} shows the benefit of {name}")
    old_end, new_end = (domain.high, high) if side == "high" else (domain.low, low)
    turn = math.inf if not math.isfinite(step) else as_number(domain.value_at_position(1 + step if side == "high" else -step))
    why = f"Better trials lie towards the {'upper' if side == 'high' else 'lower'} end, {setting(old_end)}. "
    why += _why_range_moves(as_number(old_end), new_end, turn, side, limit)
    other_end = _move_opposite_end(study, tried, name, (low, high), side)
    if other_end is None:
        return ExtendedRange(low, high, why)
    why += f". Values {'below' if side == 'high' else 'above'} {setting(other_end)} are very likely worse, so they are left out"
    return ExtendedRange(other_end, high, why) if side == "high" else ExtendedRange(low, other_end, why)


def _limit_from_usual_rates(study: Study, name: str, side: RangeSide) -> extension.ExtensionLimit | None:
    rates, domain = extension.usual_rates(study, name), study.spec.parameters[name]
    if rates is None or domain.low is None or domain.high is None:
        return None
    if side == "low" and domain.low > rates.high:
        value, side_text, end = rates.high / _USUAL_RATES_MARGIN, "above", rates.high
    elif side == "high" and domain.high < rates.low:
        value, side_text, end = rates.low * _USUAL_RATES_MARGIN, "below", rates.low
    else:
        return None
    why = f"all rates that were tried lie {side_text} {setting(end)}, where rates are unusual for {rates.training}"
    is_allowed = domain.declared_limits[0] <= value <= domain.declared_limits[1]
    return extension.ExtensionLimit(value, why) if is_allowed else None


def _why_range_moves(end: float, to: float, turn: float, side: RangeSide, limit: extension.ExtensionLimit | None) -> str:
    """Return the reason why the range now ends at `to` instead of `end`. `turn` is the value at which results would get worse
    again if the trend continued."""
    if limit is not None:
        return f"We extend to {setting(to)}: {limit.why}"
    if setting(turn, 2) == setting(end, 2):
        return f"Results may turn near this end. We extend to {setting(to)}, to see results on both sides of it"
    if math.isfinite(turn) and (turn <= to if side == "high" else turn >= to):
        return f"If the trend goes on, results turn at about {plain_number(turn, 2)}. We extend to {setting(to)}"
    return f"We extend to {setting(to)}; the optimum may lie further"


def _move_opposite_end(study: Study, tried: Settings, name: str, new: tuple[float, float], side: RangeSide) -> float | None:
    if len(study.searched) == 1 and promising.fit_response_model(study) is None:
        return _nearest_poor_value(study, tried, name, side)
    new_domain = study.spec.parameters[name].model_copy(update={"low": new[0], "high": new[1]})
    new_range = promising.narrower_ranges(study, study.spec.with_parameter(name, new_domain)).get(name, new)
    opposite = 0 if side == "high" else 1
    return new_range[opposite] if new_range[opposite] != new[opposite] else None


def _nearest_poor_value(study: Study, tried: Settings, name: str, side: RangeSide) -> float | None:
    """Return the value nearest to the best trials beyond which all trials are poor: they failed, or are nearer to the worst
    result than to the best. None for fewer than `MIN_POOR_SETTINGS` poor trials, and for a range without a log scale."""
    domain, positions = study.spec.parameters[name], tried.numeric[name]
    if domain.scale != "log" or tried.result_count < 2:
        return None
    mirrored, has_result = positions if side == "high" else 1 - positions, np.isfinite(tried.costs)
    costs = compress_costs(tried.costs[has_result])
    good = mirrored[has_result][costs <= (costs.min() + costs.max()) / 2]
    poor = mirrored[mirrored < np.nanmin(good)]
    if len(poor) < MIN_POOR_SETTINGS:
        return None
    end = as_number(domain.value_at_position(float(poor.max() if side == "high" else 1 - poor.max())))
    return round_outwards(end, "low" if side == "high" else "high")
