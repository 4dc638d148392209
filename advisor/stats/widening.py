"""Moves one end of a hyperparameter's range outwards, to a rounded value."""

from __future__ import annotations

import math

from advisor.model.space import Domain, RangeSide, as_number, is_learning_rate, natural_limits_of_name, round_significant

MIN_WIDENING_FACTOR = 3.0
"""Minimum factor by which an end of a range of learning rates moves: half a decade. Our choice."""
MAX_WIDENING_DECADES = 1.0
"""Maximum number of decades by which an end of a range moves in one round; the next round can move it again."""
MAX_LINEAR_WIDENING = 0.5
"""Maximum distance by which an end of a range on a linear scale moves, in widths of the range."""
MAX_ROUNDING_SHARE = 0.02
"""Maximum distance by which rounding to two digits may move an end, in widths of the range."""


def widen_range(name: str, domain: Domain, side: RangeSide, step: float) -> tuple[float, float] | None:
    """Return the range (low, high) after one end has moved outwards by `step` range widths; None if a limit leaves no room.

    On a linear scale, the end moves by 25 to 50 % of the width of the range; on a log scale, by 50 to 100 %, but at most a
    decade. The end of a range of learning rates moves on a log scale, by at least the factor `MIN_WIDENING_FACTOR`. A range of
    positive values is extended at most to 0. Towards a natural limit of the hyperparameter, the end moves by at most 90 % of
    the distance, for example from a beta of 0.99 to 0.999. The end may reach a limit that the user declared.
    """
    is_rate = is_learning_rate(name) and domain.low is not None and domain.low > 0
    if is_rate and domain.scale != "log":
        step, domain = _step_on_log_scale(domain, side, step), domain.model_copy(update={"scale": "log"})
    first, last = domain.ends
    min_value, max_value = _step_bounds(domain, is_rate=is_rate)
    step_in_widths = min(max(step, min_value), max_value)
    lower_limit, upper_limit = natural_limits_of_name(name, domain.type)
    try:
        end = float(domain.value_at_position(-step_in_widths if side == "low" else 1 + step_in_widths))
    except OverflowError:
        return None
    # Ignore a natural limit that the range already exceeds: for example, gamma of a focal loss may exceed the limit of a discount.
    lower_limit = lower_limit if first >= lower_limit else -math.inf
    if first >= 0 and lower_limit < 0 and domain.declared_limits[0] == -math.inf:
        lower_limit = -1e-300
    upper_limit = upper_limit if last <= upper_limit else math.inf
    old_end, limit = (first, lower_limit) if side == "low" else (last, upper_limit)
    if math.isfinite(limit) and not lower_limit < end < upper_limit:
        end = 0.0 if limit == -1e-300 else old_end + 0.9 * (limit - old_end)
    end = round_range_end(end, domain)
    if domain.type == "int" and lower_limit >= 0:
        end = max(end, lower_limit + 1)
    min_value, max_value = domain.declared_limits
    end = min(max(end, min_value), max_value)
    if abs(end - old_end) <= 1e-6 * max(abs(end), abs(old_end)) or not math.isfinite(end):
        return None
    return (end, last) if side == "low" else (first, end)


def _step_bounds(domain: Domain, *, is_rate: bool) -> tuple[float, float]:
    """Return the minimum and maximum distance by which an end of the range moves, in range widths."""
    if domain.scale == "linear":
        low, high = domain.ends
        min_distance = 1 / (high - low) if domain.type == "int" else 0.0
        return max(MAX_LINEAR_WIDENING / 2, min_distance), max(MAX_LINEAR_WIDENING, min_distance)
    decades = domain.decades
    min_distance = max(min(decades / 2, MAX_WIDENING_DECADES), math.log10(MIN_WIDENING_FACTOR) if is_rate else 0)
    return min_distance / decades, max(min(decades, MAX_WIDENING_DECADES), min_distance) / decades


def _step_on_log_scale(domain: Domain, side: str, step: float) -> float:
    """Convert `step` from widths of the range to widths of the range on a log scale; inf if the end would move to 0 or below."""
    new_end = as_number(domain.value_at_position(-step if side == "low" else 1 + step)) if math.isfinite(step) else -math.inf
    if not new_end > 0:
        return math.inf
    low, high = domain.ends
    return abs(math.log(new_end / (low if side == "low" else high))) / math.log(high / low)


def range_of_span(domain: Domain, span: tuple[float, float]) -> tuple[float, float]:
    """Return the rounded range (low, high) between two positions; it lies within the domain."""
    first, last = domain.ends
    low = first if span[0] <= 0 else max(round_range_end(float(domain.value_at_position(span[0])), domain), first)
    high = last if span[1] >= 1 else min(round_range_end(float(domain.value_at_position(span[1])), domain), last)
    return (low, high) if low < high else (first, last)


def round_range_end(value: float, domain: Domain) -> float:
    """Round the end of a range to two significant digits, or to three if two would move it too far. Round ints."""
    if domain.type == "int":
        return float(round(value))
    exact_position, rounded_position = domain.to_positions([value, round_significant(value, 2)])
    return round_significant(value, 2 if abs(exact_position - rounded_position) <= MAX_ROUNDING_SHARE else 3)
