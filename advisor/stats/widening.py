"""Moves one end of a hyperparameter's range outwards, to a rounded value."""

from __future__ import annotations

import math

from advisor.model.space import Domain, RangeSide, as_number, is_learning_rate, natural_limits_of_name, round_significant

MIN_WIDENING_FACTOR = 3.0
"""Minimum factor by which an end of a range of learning rates moves. We chose half a decade."""
MAX_WIDENING_DECADES = 1.0
"""Maximum number of decades by which an end of a range on a log scale moves at once. The next round can move the same end
again."""
MAX_LINEAR_WIDENING = 0.5
"""Maximum distance by which an end of a range on a linear scale moves, as a share of the width of the range."""
MAX_ROUNDING_SHARE = 0.02
"""Maximum distance by which rounding to two digits may move an end, as a share of the range's width; if it is exceeded, three
digits remain."""


def widen_range(name: str, domain: Domain, side: RangeSide, step: float) -> tuple[float, float] | None:
    """Return the range (low, high) after one end has moved outwards by `step` range widths; None if a hard limit leaves no
    room.

    On a linear scale, the end moves by between a quarter and half of the range's width. On a log scale, the end moves by
    between half and all of the range's width, but at most by a decade. The end of a range of learning rates moves on a log
    scale, by at least the factor `MIN_WIDENING_FACTOR`. A range of positive values is extended at most to 0. If a hard limit is
    in the way, the end moves nine tenths of the distance to the limit, for example from a beta of 0.99 to 0.999. An end may
    reach a limit that the user declared.
    """
    is_rate = is_learning_rate(name) and domain.low is not None and domain.low > 0
    if is_rate and domain.scale != "log":
        step, domain = _step_on_log_scale(domain, side, step), domain.model_copy(update={"scale": "log"})
    assert domain.low is not None
    assert domain.high is not None
    minimum, maximum = _step_bounds(domain, is_rate=is_rate)
    share = min(max(step, minimum), maximum)
    floor, ceiling = natural_limits_of_name(name, domain.type)
    try:
        end = float(domain.value_at_position(-share if side == "low" else 1 + share))
    except OverflowError:
        return None
    # If a range extends beyond a built-in limit, the limit does not apply to it: for example, focal loss also has a gamma.
    floor = floor if domain.low >= floor else -math.inf
    if domain.low >= 0 and floor < 0 and domain.declared_limits[0] == -math.inf:
        floor = -1e-300
    ceiling = ceiling if domain.high <= ceiling else math.inf
    old_end, limit = (domain.low, floor) if side == "low" else (domain.high, ceiling)
    if math.isfinite(limit) and not floor < end < ceiling:
        end = 0.0 if limit == -1e-300 else old_end + 0.9 * (limit - old_end)
    end = round_range_end(end, domain)
    if domain.type == "int" and floor >= 0:
        end = max(end, floor + 1)
    minimum, maximum = domain.declared_limits
    end = min(max(end, minimum), maximum)
    if abs(end - old_end) <= 1e-6 * max(abs(end), abs(old_end)) or not math.isfinite(end):
        return None
    return (end, domain.high) if side == "low" else (domain.low, end)


def _step_bounds(domain: Domain, *, is_rate: bool) -> tuple[float, float]:
    """Return the minimum and the maximum distance by which an end of the range moves, in range widths."""
    assert domain.low is not None
    assert domain.high is not None
    if domain.scale == "linear":
        minimum = 1 / (domain.high - domain.low) if domain.type == "int" else 0.0
        return max(MAX_LINEAR_WIDENING / 2, minimum), max(MAX_LINEAR_WIDENING, minimum)
    decades = domain.decades
    minimum = max(min(decades / 2, MAX_WIDENING_DECADES), math.log10(MIN_WIDENING_FACTOR) if is_rate else 0)
    return minimum / decades, max(min(decades, MAX_WIDENING_DECADES), minimum) / decades


def _step_on_log_scale(domain: Domain, side: str, step: float) -> float:
    """Convert `step` from widths of the range to widths of its logarithm; inf if the step leads to 0 or below."""
    assert domain.low is not None
    assert domain.high is not None
    new_end = as_number(domain.value_at_position(-step if side == "low" else 1 + step)) if math.isfinite(step) else -math.inf
    if not new_end > 0:
        return math.inf
    end = domain.low if side == "low" else domain.high
    return abs(math.log(new_end / end)) / math.log(domain.high / domain.low)


def range_of_span(domain: Domain, span: tuple[float, float]) -> tuple[float, float]:
    """Return the rounded range (low, high) between two positions in the domain, which does not extend beyond the domain."""
    assert domain.low is not None
    assert domain.high is not None
    low = domain.low if span[0] <= 0 else max(round_range_end(float(domain.value_at_position(span[0])), domain), domain.low)
    high = domain.high if span[1] >= 1 else min(round_range_end(float(domain.value_at_position(span[1])), domain), domain.high)
    return (low, high) if low < high else (domain.low, domain.high)


def round_range_end(value: float, domain: Domain) -> float:
    """Round the end of a range to two significant digits, or to three if two would move the end too far; in an int domain, to
    an integer."""
    if domain.type == "int":
        return float(round(value))
    exact_position, rounded_position = domain.to_positions([value, round_significant(value, 2)])
    return round_significant(value, 2 if abs(exact_position - rounded_position) <= MAX_ROUNDING_SHARE else 3)
