"""Determines the kind of a learning-rate schedule from values of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

SCHEDULE_GRID_POINTS = 257
_EQUAL_RATES_TOLERANCE = 2e-3
"""Maximum difference, as a fraction of the peak learning rate, between two learning rates that count as equal."""
_MAX_FIT_ERROR = 0.03
"""Maximum distance, as a fraction of the total decrease, between a learning-rate curve and the function that is fitted to it."""
_DEFAULT_SCHEDULE_STEPS = 1 << 20
"""Number of steps over which a schedule is evaluated if the planned number of steps is unknown."""


def schedule_kind_of_function(factor: Callable[[int], float], steps: int | None) -> str:
    """Return the kind of the schedule that multiplies a base learning rate by `factor(step)`. Errors in `factor` propagate.

    Only the steps up to the last change of `factor` are used, because `factor` may count epochs while `steps` counts optimizer
    steps.
    """
    end = steps or _DEFAULT_SCHEDULE_STEPS
    ahead = [0] + [1 << i for i in range(end.bit_length()) if 1 << i < end] + [end]
    end = _last_step_of_change(ahead, [float(factor(i)) for i in ahead])
    for _ in range(3):  # each pass narrows the interval of steps in which the last change of the factor lies
        grid = sorted({round(end * i / (SCHEDULE_GRID_POINTS - 1)) for i in range(SCHEDULE_GRID_POINTS)})
        values = [float(factor(i)) for i in grid]
        nearer = _last_step_of_change(grid, values)
        if nearer > 0.8 * end:
            break
        end = nearer
    return schedule_kind_of_values(grid, values)


def schedule_kind_of_values(steps: Sequence[int], values: Sequence[float]) -> str:
    """Return the kind of a schedule. values: learning rates at `steps`, known up to a constant factor; both have shape (n,)."""
    if not all(math.isfinite(v) for v in values):
        return "other"
    peak = max(values, key=abs)
    if peak <= 0:
        return "constant" if max(values) - min(values) == 0 else "other"
    top = next(i for i, v in enumerate(values) if v >= peak * (1 - _EQUAL_RATES_TOLERANCE))
    if top and not (all((b >= a for a, b in pairwise(values[: top + 1])))):
        return "cyclic" if _count_rises_after_falls(values, peak) > 1 else "other"
    kind = _decay_kind(steps[top:], values[top:], peak)
    return "warmup+" + kind if top and kind != "cyclic" else kind


def _decay_kind(steps: Sequence[int], values: Sequence[float], peak: float) -> str:
    """Return the kind of a schedule without a warmup, whose learning rate is highest at the first step."""
    tolerance = peak * _EQUAL_RATES_TOLERANCE
    if max(values) - min(values) <= tolerance:
        return "constant"
    if _count_rises_after_falls(values, peak):
        return "cyclic"
    changes = [not math.isclose(a, b) for a, b in pairwise(values)]
    if len(values) >= 8 and not any(a and b for a, b in pairwise(changes)):
        return "step"
    first = max(i for i, v in enumerate(values) if v >= peak - tolerance)  # a constant phase may precede the fall
    last = len(values) - 1
    while values[last - 1] - values[last] == 0:
        last -= 1
    ts = [(s - steps[first]) / (steps[last] - steps[first]) for s in steps[first : last + 1]]
    falling = values[first : last + 1]
    down = [(v - falling[-1]) / (falling[0] - falling[-1]) for v in falling]
    return _decay_form(ts, down, falling)


def _decay_form(ts: Sequence[float], down: Sequence[float], values: Sequence[float]) -> str:
    """Return the functional form of a decrease of the learning rate. ts: time (n,) from 0 to 1. down: learning rate (n,),
    scaled to fall from 1 to 0. values: unscaled learning rate."""

    def fits(form: Callable[[float], float]) -> bool:
        return all(abs(d - form(t)) <= _MAX_FIT_ERROR for t, d in zip(ts, down, strict=True))

    if fits(lambda t: 1 - t):
        return "linear"
    if fits(lambda t: (1 + math.cos(math.pi * t)) / 2):
        return "cosine"
    if values[-1] > 0:
        rate = math.log(values[-1] / values[0])
        if fits(lambda t: (math.exp(rate * t) - math.exp(rate)) / (1 - math.exp(rate))):
            return "exponential"
    middle = next((d for t, d in zip(ts, down, strict=True) if t >= 0.5), 0.0)
    power = math.log(middle) / math.log(0.5) if 0 < middle < 1 else 0.0
    return "polynomial" if power and fits(lambda t: (1 - t) ** power) else "other"


def _last_step_of_change(steps: Sequence[int], values: Sequence[float]) -> int:
    """Return the first step of the final phase, in which the values stay constant."""
    peak = max(abs(v) for v in values)
    for i in range(len(values) - 1, 0, -1):
        if abs(values[i - 1] - values[-1]) > peak * _EQUAL_RATES_TOLERANCE:
            return steps[i]
    return steps[min(1, len(steps) - 1)]


def _count_rises_after_falls(values: Sequence[float], peak: float) -> int:
    """Return the number of times that the values rise again after a fall."""
    signs = [b > a for a, b in pairwise(values) if abs(b - a) > peak * _EQUAL_RATES_TOLERANCE]
    return sum(up and not before for before, up in pairwise(signs))
