"""Axis limits that ignore outliers, scales from values to pixels, and axis ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from advisor.model.space import MAX_FINITE_VALUE, AxisScale as SpaceScale, FloatArray, transform_to_scale


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps the values `low` to `high` onto the pixels `start_px` to `end_px`."""

    low: float
    high: float
    start_px: float
    end_px: float
    log: bool = False
    reverse: bool = False
    """Whether the axis shows 1 - value on a logarithmic scale."""

    def __call__(self, value: float) -> float:
        """Return the pixel of a value, clipped to the ends of the axis. Raises ValueError if the scale cannot represent it."""
        low, high, at = map(self._axis_coordinate, (self.low, self.high, value))
        return self.start_px + min(max((at - low) / (high - low), 0.0), 1.0) * (self.end_px - self.start_px)

    def _axis_coordinate(self, value: float) -> float:
        return -math.log10(1 - value) if self.reverse else math.log10(value) if self.log else value

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and self.low <= value <= self.high

    def can_represent(self, value: float) -> bool:
        """Return whether the scale has a position for the value, also beyond its ends. A logarithmic scale has none for 0."""
        return math.isfinite(value) and (value > 0 or not self.log) and (value < 1 or not self.reverse)

    def ticks(self, count: int = 6) -> list[tuple[float, str]]:
        """Return (value, label) pairs for round values within the scale; there are about `count` pairs or fewer."""
        if self.reverse:
            distances_from_1 = [round(1 - v, 12) for v in reversed(_log_ticks(1 - self.high, 1 - self.low, count))]
            return [(v, f"{v:.12g}") for v in distances_from_1]
        tick_values = _log_ticks(self.low, self.high, count) if self.log else _linear_ticks(self.low, self.high, count)
        return [(v, label) for v, label in zip(tick_values, _tick_labels(tick_values, log=self.log), strict=True)]


def _linear_ticks(low: float, high: float, count: int) -> list[float]:
    step = (high - low) / max(count, 1)
    power_of_ten = 10.0 ** math.floor(math.log10(step))
    step = next(power_of_ten * m for m in (1, 2, 5, 10) if power_of_ten * m >= step * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [round(i * step, decimals) + 0.0 for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    decades = last - first + 1
    if decades >= 3:
        return [10.0**e for e in range(first, last + 1, math.ceil(decades / count))]
    for steps in ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        tick_values = [m * 10.0**e for e in range(first - 1, last + 1) for m in steps]
        values_in_range = [v for v in tick_values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if 3 <= len(values_in_range) <= count + 2:
            return values_in_range
    return [v for v in _linear_ticks(low, high, count) if v > 0]


def _tick_labels(values: Sequence[float], *, log: bool) -> list[str]:
    largest = max((abs(v) for v in values), default=0.0)
    gap = min((b - a for a, b in pairwise(values)), default=0.0)
    if log or largest >= 1e6 or 0 < largest < 1e-3 or not gap:
        return [tick_label(v) for v in values]
    decimals = max(0, -math.floor(math.log10(gap) + 1e-6))
    decimals += abs(round(gap, decimals) - gap) > 1e-3 * gap
    return [f"{v:,.{decimals}f}" for v in values]


def tick_label(value: float) -> str:
    """Return the shortest readable text of a round value: 1e-4, 0.003, 20, 1,000 or 1e6."""
    magnitude = abs(value)
    if value and (magnitude < 0.999e-3 or magnitude >= 1e5):
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.6g}" if magnitude >= 1 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class AxisLimits:
    low: float
    high: float
    log: bool
    reverse: bool = False

    def scale(self, start: float, end: float) -> Scale:
        return Scale(self.low, self.high, start, end, self.log, self.reverse)

    def count_values_outside(self, values: FloatArray) -> int:
        finite_values = values[np.isfinite(values)]
        return int(((finite_values < self.low) | (finite_values > self.high)).sum())


MIN_LOG_AXIS_RATIO = 30
"""Minimum ratio of large to small values at which an axis of positive values is logarithmic."""


def padded_axis_limits(low: float, high: float, *, log: bool, reverse: bool = False, by: float = 0.04) -> AxisLimits:
    """Return limits with a margin of `by` times their distance at both ends; they differ even if `low` equals `high`."""
    if reverse and high < 1:
        reversed_limits = padded_axis_limits(1 - high, 1 - low, log=True, by=by)
        return AxisLimits(1 - reversed_limits.high, 1 - reversed_limits.low, log=False, reverse=True)
    if log and low > 1 / MAX_FINITE_VALUE:
        a, b = math.log10(low), math.log10(high)
        margin = (b - a) * by or 0.2
        return AxisLimits(10 ** (a - margin), 10 ** (b + margin), True)
    margin = (high - low) * by or abs(high) * 0.1 or 1.0
    return AxisLimits(low - margin, high + margin, False)


def axis_limits_of_values(values: Sequence[float], scale: SpaceScale, *, by: float = 0.04) -> AxisLimits:
    """Return limits that include all values that the scale can represent, with a margin at both ends."""
    on = np.array([v for v in values if math.isfinite(v)])
    on = on[np.isfinite(transform_to_scale(on, scale))]
    if not len(on):
        return AxisLimits(0.0, 1.0, False)
    return padded_axis_limits(float(on.min()), float(on.max()), log=scale == "log", reverse=scale == "reverse-log", by=by)


BETTER_HALF_AXIS_SHARE = 0.3
"""Minimum share of the axis for the better half of the trials, so that their differences stay visible. Our choice."""
MIN_CROWDED_LOG_RATIO = 2
"""Minimum ratio of largest to smallest value for a logarithmic axis of crowded trials. Below it, such an axis hardly helps."""
MAX_CLIPPED_TRIALS_SHARE = 0.25
"""Maximum share of trials that an axis may exclude to make room for the better half of the trials."""


def objective_axis_limits(values: FloatArray, *, minimize: bool) -> AxisLimits:
    """Return limits for the trials' results (n,) that include the best value and exclude bad outliers, which lie more than 3
    interquartile ranges (10 with fewer than 20 trials) beyond the bad quartile. If the better half is crowded, the axis is
    logarithmic (in 1 minus the value for a share that is maximised) or excludes the worst trials."""
    finite = values[np.abs(values) < MAX_FINITE_VALUE]
    if len(finite) == 0:
        return AxisLimits(0.0, 1.0, False)
    log = bool(finite.min() > 0 and np.quantile(finite, 0.9) >= MIN_LOG_AXIS_RATIO * finite.min())
    signed = finite if minimize else -finite
    crowded = len(finite) > 4 and np.median(signed) - signed.min() < BETTER_HALF_AXIS_SHARE * np.ptp(signed)
    if crowded and not log and minimize:
        log = bool(finite.min() > 0 and finite.max() >= MIN_CROWDED_LOG_RATIO * finite.min())
    elif crowded and not log and finite.min() >= 0 and finite.max() < 1:
        error_limits = objective_axis_limits(1 - finite, minimize=True)
        if error_limits.log:
            return AxisLimits(1 - error_limits.high, 1 - error_limits.low, log=False, reverse=True)
    costs = np.log10(finite) if log else finite
    costs = costs if minimize else -costs
    best, q1, q3, worst_shown = np.quantile(costs, [0, 0.25, 0.75, 1])
    # With fewer than 20 trials, quartiles are inaccurate, so only more extreme values count as outliers.
    outlier_bound = q3 + (3 if len(finite) >= 20 else 10) * max(q3 - q1, (q3 - best) / 4)
    if worst_shown > outlier_bound and len(finite) > 4:
        worst_shown = costs[costs <= outlier_bound].max()
    if len(finite) > 4 and (median := float(np.median(costs))) - best < BETTER_HALF_AXIS_SHARE * (worst_shown - best):
        crowding_bound = best + (median - best) / BETTER_HALF_AXIS_SHARE
        worst_shown = max(costs[costs <= crowding_bound].max(), np.quantile(costs, 1 - MAX_CLIPPED_TRIALS_SHARE))
    axis_ends = sorted((float(best), float(worst_shown)) if minimize else (float(-best), float(-worst_shown)))
    low, high = (10 ** axis_ends[0], 10 ** axis_ends[1]) if log else (axis_ends[0], axis_ends[1])
    return _limits_without_impossible_values(padded_axis_limits(low, high, log=log, by=0.06), finite)


def _limits_without_impossible_values(limits: AxisLimits, values: FloatArray) -> AxisLimits:
    """Cut limits at 0 if all values have the same sign, and at 1 if all values lie in 0..1."""
    low = max(limits.low, 0.0) if values.min() >= 0 else limits.low
    new_high = min(limits.high, 1.0) if values.min() >= 0 and values.max() <= 1 else limits.high
    new_high = min(new_high, 0.0) if values.max() <= 0 else new_high
    return replace(limits, low=low, high=new_high) if low < new_high else limits


def widened_axis_limits(limits: AxisLimits, values: Sequence[float]) -> AxisLimits:
    shown = [v for v in values if abs(v) < MAX_FINITE_VALUE and (v > 0 or not limits.log) and (v < 1 or not limits.reverse)]
    return replace(limits, low=min([limits.low, *shown]), high=max([limits.high, *shown]))


def limits_widened_if_near(limits: AxisLimits, values: Sequence[float]) -> AxisLimits:
    """Return limits widened to include the marked values. A value so far away that the data would look flat is left out."""
    low, high = limits.low, limits.high
    for value in filter(math.isfinite, values):
        axis_range = high - low
        is_near_on_log = value > 0 and low / 10 <= value <= high * 10
        if is_near_on_log if limits.log else low - axis_range <= value <= high + axis_range:
            low, high = min(low, value), max(high, value)
    return AxisLimits(low, high, limits.log)


def curve_axis_limits(steady: Sequence[FloatArray], others: Sequence[FloatArray] = ()) -> AxisLimits:
    """Return limits that include steady curves (of trials with a result), except outliers: values (n,) outside the middle 96 %
    by more than 1.5 times their span (two decades on a log scale). Without a steady curve, the limits include the middle 80 %
    of `others`, which may have diverged."""
    limiting_curves, tail = (steady, 0.02) if any((np.abs(v) < MAX_FINITE_VALUE).any() for v in steady) else (others, 0.1)
    finite = np.concatenate([v[np.abs(v) < MAX_FINITE_VALUE] for v in limiting_curves] or [np.empty(0)])
    if len(finite) == 0:
        return AxisLimits(0.0, 1.0, False)
    # two values only have these quantiles in reverse order
    low, high = sorted((np.quantile(finite, tail, method="higher"), np.quantile(finite, 1 - tail, method="lower")))
    log = bool(finite.min() > 0 and finite.max() >= MIN_LOG_AXIS_RATIO * low)
    axis_values = np.log10(finite) if log else finite
    low, high = (float(np.log10(v)) if log else float(v) for v in (low, high))
    # On a log scale, a margin of two decades shows spikes without flattening the other values.
    outlier_distance = max(1.5 * (high - low), 2.0) if log else 1.5 * (high - low) or np.inf
    shown_values = axis_values[(axis_values >= low - outlier_distance) & (axis_values <= high + outlier_distance)]
    shown_low, top = float(shown_values.min()), float(shown_values.max())
    limits = padded_axis_limits(10**shown_low, 10**top, log=True) if log else padded_axis_limits(shown_low, top, log=False)
    return _limits_without_impossible_values(limits, finite)
