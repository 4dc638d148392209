"""Tests whether training curves fall as they do at a constant learning rate.

At a constant learning rate, a loss is nearly a sum of decaying exponentials. The loss falls more and more slowly, and the
logarithm of its rate of fall is convex (Bernstein's theorem). A decay of the learning rate breaks this pattern: the loss falls
faster, falls evenly to the end, or stops abruptly. However, curves of a linear or cosine decay may look like curves at a
constant rate, because training noise falls with the learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from advisor.model.space import MAX_FINITE_VALUE, FloatArray, IntArray
from advisor.stats.curve import MIN_LATE_POINTS, late_residual_scatter

SKIPPED_START_SHARE = 0.15
"""Share of the steps, after the highest cost, that is left out because of warmup and the first fall."""
_NUMBER_OF_WINDOWS = 4
_MIN_GAIN_IN_SDS = 6.0
"""Minimum gain of a run, in standard deviations of its curve's noise."""
_CONSTANT_RATE_TEST_LEVEL = 0.01
"""Significance level of each of five tests whether curves fall as at a constant learning rate; the five levels sum to 5 %."""
_NO_GAIN_TEST_LEVEL = 0.01
_EXPONENTIAL_DECAY_RATES = np.array([0.0, 0.3, 1.0, 2.0, 4.0, 7.0, 12.0, 20.0, 35.0])
"""Decay rates of the exponentials. With rate 1, an exponential falls by the factor e over a training at the peak learning rate."""
_MIN_RELATIVE_ERROR = 0.005
"""Minimum standard error of a rate of fall, as a share of the largest rate of fall."""
_POINTS_PER_WINDOW = 40


@dataclass(frozen=True, slots=True)
class FallRates:
    """Mean rates at which curves fall, as shares of each curve's gain, in windows of equal length."""

    fall_rates: FloatArray
    """Gain that a whole training would have at the rate of fall of each window, shape (4,)."""
    standard_errors: FloatArray
    first_window_start: float = SKIPPED_START_SHARE

    @property
    def contradicts_constant_rate(self) -> bool:
        """True if the curves fall faster towards the end or stop abruptly, which a constant learning rate cannot explain."""
        r, variance = self.fall_rates, self.standard_errors**2
        z_scores = [_z_score(r[i + 1] - r[i], variance[i + 1] + variance[i]) for i in range(_NUMBER_OF_WINDOWS - 1)]
        for a, b, c in zip(range(_NUMBER_OF_WINDOWS), range(1, _NUMBER_OF_WINDOWS), range(2, _NUMBER_OF_WINDOWS), strict=False):
            if r[b] > 0:  # log-convex: r[b] ** 2 <= r[a] * r[c]
                variance_of_bend = 4 * r[b] ** 2 * variance[b] + r[c] ** 2 * variance[a] + r[a] ** 2 * variance[c]
                z_scores.append(_z_score(r[b] ** 2 - max(r[a], 0.0) * r[c], variance_of_bend))
        return max(z_scores) > float(stats.norm.isf(_CONSTANT_RATE_TEST_LEVEL))

    def longer_training_helps(self, material: float) -> bool:
        """Return True if training twice as long gains more than the share `material` under any likely schedule. Longer training
        helps if a constant learning rate fits the curves significantly better than a linear or cosine decay without a gain."""
        misfit_of_constant_rate = self._schedule_misfit("constant")
        misfit_of_decay = min(self._schedule_misfit(kind, material) for kind in ("linear", "cosine"))
        return misfit_of_decay - misfit_of_constant_rate > float(stats.norm.isf(_NO_GAIN_TEST_LEVEL)) ** 2

    def _schedule_misfit(self, kind: str, material: float | None = None) -> float:
        """Return the sum of squared errors of the best model of the rates of fall. A model consists of exponentials of the sum
        of the learning rates so far, and training noise that falls with the learning rate. material: if set, the gain from
        doubling the training is 0 with this standard deviation."""
        points = _NUMBER_OF_WINDOWS * _POINTS_PER_WINDOW
        at = self.first_window_start + (1 - self.first_window_start) * (np.arange(points) + 0.5) / points
        learning_rate, rate_sum, decrease = _schedule_integrals(kind, at)
        end = float(_schedule_integrals(kind, np.ones(1))[1][0])
        exponentials = learning_rate[:, None] * np.exp(-_EXPONENTIAL_DECAY_RATES * rate_sum[:, None])
        point_models = np.column_stack([exponentials, decrease])
        point_weights = 1 - np.linspace(-1, 1, _POINTS_PER_WINDOW) ** 2  # those of a slope
        by_window = point_models.reshape(_NUMBER_OF_WINDOWS, _POINTS_PER_WINDOW, -1)
        window_models = np.average(by_window, axis=1, weights=point_weights)
        min_error = _MIN_RELATIVE_ERROR * max(float(np.abs(self.fall_rates).max()), 1e-9)
        errors = np.maximum(self.standard_errors, min_error)
        models, rates = window_models / errors[:, None], self.fall_rates / errors
        if material is not None:
            decay_rates = np.maximum(_EXPONENTIAL_DECAY_RATES, 1e-9)
            gains = -np.exp(-decay_rates * end) * np.expm1(-decay_rates * end) / decay_rates
            models, rates = np.vstack([models, np.append(gains, 0.0) / material]), np.append(rates, 0.0)
        return float(optimize.nnls(models, rates)[1]) ** 2


def _schedule_integrals(kind: str, at: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (learning rate, its integral, its rate of decrease), as multiples of the peak. at: shares of the steps."""
    if kind == "linear":
        return 1 - at, at - at**2 / 2, np.ones_like(at)
    if kind == "cosine":
        phase_angle = np.pi * at
        return (1 + np.cos(phase_angle)) / 2, (at + np.sin(phase_angle) / np.pi) / 2, np.pi / 2 * np.sin(phase_angle)
    return np.ones_like(at), at, np.zeros_like(at)


def _z_score(value: float, variance: float) -> float:
    return value / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, value) if value else 0.0


def pool_fall_rates(curves: Sequence[tuple[IntArray, FloatArray]]) -> FallRates | None:
    """Return the pooled rates of fall of curves (steps, costs); None if no curve has enough points and a gain above noise."""
    peaks = [steps[int(np.argmax(costs))] / max(float(steps[-1]), 1.0) for steps, costs in curves if len(costs)]
    start = min(SKIPPED_START_SHARE + float(np.median(peaks)), 0.5) if peaks else SKIPPED_START_SHARE
    falls = [fall for steps, costs in curves if (fall := _fall_rates(steps, costs, start)) is not None]
    if not falls:
        return None
    weights = np.array([1 / max(float(np.mean(variances)), 1e-300) for _, variances in falls])
    weights /= weights.sum()
    rates_of_curves, variances = (np.array([f[i] for f in falls]) for i in (0, 1))
    return FallRates(weights @ rates_of_curves, np.sqrt(weights**2 @ variances), start)


def _fall_rates(steps: IntArray, costs: FloatArray, start: float) -> tuple[FloatArray, FloatArray] | None:
    """Return (rates of fall of one curve, their variances), as shares of the curve's gain."""
    if len(costs) < max(MIN_LATE_POINTS, 2 * _NUMBER_OF_WINDOWS) or steps[-1] <= 0:
        return None
    t, y = steps / float(steps[-1]), np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    y = y / (float(np.abs(y).max()) or 1.0)
    scatter, inflation, _ = late_residual_scatter(t, y)
    total_gain = float(y[: int(np.argmin(y)) + 1].max() - y.min())
    if not total_gain > _MIN_GAIN_IN_SDS * scatter:
        return None
    # Interpolate the curve on a regular grid, because windows of unequal width would make even an exact exponential look bent.
    size = int((t >= start).sum()) // _NUMBER_OF_WINDOWS
    if size < 2:
        return None
    grid = np.linspace(start, 1.0, _NUMBER_OF_WINDOWS * size + 1)
    grid_costs = np.interp(grid, t, y)
    x = grid[: size + 1] - grid[: size + 1].mean()
    starts = range(0, _NUMBER_OF_WINDOWS * size, size)
    fall_rates = np.array([-float(x @ grid_costs[i : i + size + 1]) for i in starts])
    fall_rates /= float(x @ x) * total_gain
    variances = np.full(_NUMBER_OF_WINDOWS, (scatter / total_gain) ** 2 * inflation / float(x @ x))
    return fall_rates, variances
