"""The kind of a learning-rate schedule from its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

POINTS = 257
_ALIKE = 2e-3
"""Values that differ by less than this share of the peak are the same."""
_FITS = 0.03
"""How far a curve may lie from a form, as a share of its fall: half of what a point's place on the grid is worth."""
_FAR = 1 << 20
"""Steps to look ahead where nobody said how many the training makes."""


def kind_of_function(factor: Callable[[int], float], steps: int | None) -> str:
    """The kind of the schedule whose factor at each step `factor` gives, over `steps` steps; raises whatever `factor` raises.

    It may count epochs while `steps` counts optimizer steps: what is looked at ends where its last change does.
    """
    end = steps or _FAR
    ahead = [0] + [1 << i for i in range(end.bit_length()) if 1 << i < end] + [end]
    end = _last_change(ahead, [float(factor(i)) for i in ahead])
    for _ in range(3):  # each time closer to the steps at which anything happens
        grid = sorted({round(end * i / (POINTS - 1)) for i in range(POINTS)})
        values = [float(factor(i)) for i in grid]
        nearer = _last_change(grid, values)
        if nearer > 0.8 * end:
            break
        end = nearer
    return kind_of_values(grid, values)


def kind_of_values(steps: Sequence[int], values: Sequence[float]) -> str:
    """The kind, as in `contract.TAG_SCHEDULE`, of the learning rates `values` (n,) at `steps` (n,), or of multiples of them."""
    if not all(math.isfinite(v) for v in values):
        return "other"
    peak = max(values, key=abs)
    if peak <= 0:
        return "constant" if max(values) - min(values) == 0 else "other"
    top = next(i for i, v in enumerate(values) if v >= peak * (1 - _ALIKE))
    if top and not _rises(values[: top + 1]):
        return "cyclic" if _turns(values, peak) > 1 else "other"
    kind = _kind_of_fall(steps[top:], values[top:], peak)
    return "warmup+" + kind if top and kind != "cyclic" else kind


def _kind_of_fall(steps: Sequence[int], values: Sequence[float], peak: float) -> str:
    """The kind of what begins at its peak."""
    alike = peak * _ALIKE
    if max(values) - min(values) <= alike:
        return "constant"
    if _turns(values, peak):
        return "cyclic"
    changes = [not math.isclose(a, b) for a, b in pairwise(values)]
    if len(values) >= 8 and not any(a and b for a, b in pairwise(changes)):
        return "step"
    first = max(i for i, v in enumerate(values) if v >= peak - alike)  # the fall may follow a level stretch
    last = len(values) - 1
    while values[last - 1] - values[last] == 0:
        last -= 1
    ts = [(s - steps[first]) / (steps[last] - steps[first]) for s in steps[first : last + 1]]
    falling = values[first : last + 1]
    down = [(v - falling[-1]) / (falling[0] - falling[-1]) for v in falling]
    return _form(ts, down, falling)


def _form(ts: Sequence[float], down: Sequence[float], values: Sequence[float]) -> str:
    """The form of a fall from 1 to 0, `down` (n,) over `ts` (n,) from 0 to 1; `values` are the same as they were given."""

    def fits(form: Callable[[float], float]) -> bool:
        return all(abs(d - form(t)) <= _FITS for t, d in zip(ts, down, strict=True))

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


def _last_change(steps: Sequence[int], values: Sequence[float]) -> int:
    """The step from which on the values stay as they are."""
    peak = max(abs(v) for v in values)
    for i in range(len(values) - 1, 0, -1):
        if abs(values[i - 1] - values[-1]) > peak * _ALIKE:
            return steps[i]
    return steps[min(1, len(steps) - 1)]


def _rises(values: Sequence[float]) -> bool:
    return all(b >= a for a, b in pairwise(values))


def _turns(values: Sequence[float], peak: float) -> int:
    """How often the values rise again after they fell."""
    signs = [b > a for a, b in pairwise(values) if abs(b - a) > peak * _ALIKE]
    return sum(up and not before for before, up in pairwise(signs))
