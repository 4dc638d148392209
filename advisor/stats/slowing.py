"""Do curves fall like curves at a constant learning rate?

At a constant rate, a loss is nearly a sum of decaying exponentials (noisy quadratic models and power laws alike). Such a sum falls
ever more slowly, and it slows gradually: the logarithm of its rate of fall is convex (Bernstein's theorem, completely monotone
functions). A decay of the learning rate breaks this: the fall speeds up, keeps its pace to the end, or stops abruptly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray, IntArray
from advisor.stats.curve import HUGE, LATE_POINTS, late_scatter

START = 0.15
"""Share of the steps that are not judged: warmup and the first fall."""
_WINDOWS = 4
_MIN_GAIN = 6.0
"""Minimum gain of a run, in standard deviations of its noise."""
_BROKEN = 0.01
"""Level of each of five tests that the curves do not fall as at a constant learning rate: 5 % together."""
_SLOWER = 0.05
"""Level of the test that they slow down."""
_LINE = 0.75
"""Maximum ratio of the rate of fall in the last window to that in the second, to distinguish a curve from the nearly straight
line that a linear decay of the learning rate gives."""


@dataclass(frozen=True, slots=True)
class Fall:
    """Mean rates of fall of several curves in equal windows of the steps; each curve is a share of its own gain."""

    rates: FloatArray
    """Gain over the whole training at the rate of each window, shape (4,)."""
    errors: FloatArray
    """Standard error of each rate, shape (4,)."""

    @property
    def broken(self) -> bool:
        """Return True if the curves speed up or stop abruptly, as they cannot at a constant learning rate."""
        r, variance = self.rates, self.errors**2
        tests = [_z(r[i + 1] - r[i], variance[i + 1] + variance[i]) for i in range(_WINDOWS - 1)]
        for a, b, c in zip(range(_WINDOWS), range(1, _WINDOWS), range(2, _WINDOWS), strict=False):
            if r[b] > 0:  # log-convex: r[b] ** 2 <= r[a] * r[c]
                spread = 4 * r[b] ** 2 * variance[b] + r[c] ** 2 * variance[a] + r[a] ** 2 * variance[c]
                tests.append(_z(r[b] ** 2 - max(r[a], 0.0) * r[c], spread))
        return max(tests) > float(stats.norm.isf(_BROKEN))

    @property
    def slows(self) -> bool:
        """Return True if the curves fall clearly more slowly towards their end, as they do at a constant learning rate."""
        excess = float(self.rates[-1] - _LINE * self.rates[1])
        return _z(excess, self.errors[-1] ** 2 + (_LINE * self.errors[1]) ** 2) < -float(stats.norm.isf(_SLOWER))


def _z(value: float, variance: float) -> float:
    return value / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, value) if value else 0.0


def pooled_fall(curves: Sequence[tuple[IntArray, FloatArray]]) -> Fall | None:
    """Return the pooled fall of curves of (steps, costs); None if none of them has enough points or gained beyond its noise."""
    found = [fall for steps, costs in curves if (fall := _fall(steps, costs)) is not None]
    if not found:
        return None
    weights = np.array([1 / max(float(np.mean(variances)), 1e-300) for _, variances in found])
    weights /= weights.sum()
    rates, variances = (np.array([f[i] for f in found]) for i in (0, 1))
    return Fall(weights @ rates, np.sqrt(weights**2 @ variances))


def _fall(steps: IntArray, costs: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Return the rates of fall of one curve and their variances, as shares of its gain."""
    if len(costs) < max(LATE_POINTS, 2 * _WINDOWS) or steps[-1] <= 0:
        return None
    t, y = steps / float(steps[-1]), np.clip(costs, -HUGE, HUGE)
    y = y / (float(np.abs(y).max()) or 1.0)
    scatter, inflation, _ = late_scatter(t, y)
    gained = float(y[: int(np.argmin(y)) + 1].max() - y.min())
    if not gained > _MIN_GAIN * scatter:
        return None
    # Windows of unequal width would bend even an exact exponential, so the curve is read at regular places.
    each = int((t >= START).sum()) // _WINDOWS
    if each < 2:
        return None
    grid = np.linspace(START, 1.0, _WINDOWS * each + 1)
    read = np.interp(grid, t, y)
    x = grid[: each + 1] - grid[: each + 1].mean()
    rates = np.array([-float(x @ read[i : i + each + 1]) for i in range(0, _WINDOWS * each, each)])
    rates /= float(x @ x) * gained
    variances = np.full(_WINDOWS, (scatter / gained) ** 2 * inflation / float(x @ x))
    return rates, variances
