"""Analyses the end of a training curve: forecasts the gain from doubling the training, and finds the start of a plateau.

Steps are shares of the run's steps. Costs are shares of the run's gain, which is the highest cost before the best cost, minus the
best cost. A curve that starts at ten or more times the level of its second half is analysed on a log scale, because on a linear
scale its later costs would look flat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import MAX_FINITE_VALUE, BoolArray, FloatArray, IntArray
from advisor.stats.curve import MIN_LATE_POINTS, late_residual_scatter, noise_sd

MIN_POINTS = 8
"""Minimum number of evaluations of a curve to distinguish the course of its end from noise."""
LOW_FORECAST_FACTOR = 1 / 4
HIGH_FORECAST_FACTOR = 2.6
"""In nine of ten noise-free curves, the gain from doubling the training at a constant learning rate lies between
`LOW_FORECAST_FACTOR` and `HIGH_FORECAST_FACTOR` times the forecast. `benchmarks/quality/forecasts.py` measured these factors on
truncated real curves."""
_NORMAL_QUANTILE_90 = 1.645
"""Quantile of the standard normal distribution that bounds central 90 % intervals."""
_MAX_BINS = 200
_MIN_FALL_FOR_LOG = 10.0
_MIN_GAIN_IN_SDS = 6.0
"""Minimum gain of a run, in standard deviations of the curve's noise."""


@dataclass(frozen=True, slots=True)
class CurveEnd:
    """The end of one training curve. Costs are given as shares of the run's gain, and steps as shares of the run's steps."""

    points: int
    """Number of evaluations in the window, the last part of the curve."""
    window_share: float
    """Share of the run's steps in the window."""
    gain: float
    """Gain over the window, from a straight line that is fitted to the window; negative if the cost rose."""
    error: float
    """Standard error of the gain, including autocorrelated noise."""
    scatter: float
    """Standard deviation of the noise of one evaluation."""
    freedom: float
    gain_ratio: float
    """Gain over the window divided by the gain over the preceding window; below 1 if the curve levels off."""
    p_value: float
    """One-sided p-value of the hypothesis that the curve is flat: twice the smaller p-value of a t-test of the slope and a sign
    test of successive differences. The sign test is valid for any autocorrelation, and detects smooth falls far from a straight
    line."""

    @property
    def forecast_factor(self) -> float:
        """Forecast gain from doubling the training, as a multiple of the gain over the last window.

        We assume that the gain shrinks by the same factor from window to window, as in an exponential decay. The forecast is at
        most the gain of a curve that falls with the logarithm of the steps, as a power law nearly does. The limit also reduces
        the effect of a drop of the cost when the learning rate decays.
        """
        max_ratio = math.log(2) / -math.log1p(-self.window_share)
        ratio = max(self.gain_ratio, 0.0)
        if ratio >= 1:
            return max_ratio
        return min(ratio * (1 - math.pow(ratio, 1 / self.window_share)) / (1 - ratio), max_ratio)

    @property
    def forecast_gain(self) -> float:
        return self.gain * self.forecast_factor

    def forecast_interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return (low, high) bounds, at probability `level`, of the gain in the best evaluation from doubling the training.
        The bounds combine evaluation noise with the unknown shape of the curve. The low bound is at least 0, because the best
        evaluation so far remains."""
        forecast, z_score = max(self.forecast_gain, 0.0), float(stats.norm.ppf(0.5 + level / 2))
        noise_margin = float(stats.t.ppf(0.5 + level / 2, self.freedom)) * self.error * self.forecast_factor
        low = forecast - math.hypot(noise_margin, forecast * (1 - LOW_FORECAST_FACTOR ** (z_score / _NORMAL_QUANTILE_90)))
        high_margin = forecast * (HIGH_FORECAST_FACTOR ** (z_score / _NORMAL_QUANTILE_90) - 1)
        high = forecast + math.hypot(noise_margin, z_score * self.scatter, high_margin)
        return max(low, 0.0), high

    def share_of_forecast_gain(self, times: float) -> float:
        """Return the share of the forecast gain that training `times` times as long yields: 0 for 1, and 1 for 2 or more."""
        extra_share = min(max(times - 1, 0.0), 1.0)
        if self.gain_ratio <= 0 or self.gain_ratio >= 1:
            return extra_share
        gain, full_gain = (1 - math.pow(self.gain_ratio, share / self.window_share) for share in (extra_share, 1))
        return gain / full_gain

    def chance_above(self, material: float) -> float:
        """Return the probability that the forecast gain exceeds `material`, if evaluation noise is the only uncertainty."""
        if self.forecast_factor <= 0:
            return 0.0
        if self.error <= 0:
            return float(self.forecast_gain > material)
        return float(stats.t.sf((material / self.forecast_factor - self.gain) / self.error, self.freedom))

    def is_improving(self, material: float, alpha: float) -> bool:
        """Return True if the curve falls significantly at level `alpha`, and its forecast gain exceeds `material`."""
        return self.p_value <= alpha and self.forecast_gain > material

    @property
    def recommended_length_factor(self) -> float:
        """Factor on the length, from 1.5 to 3, with which an exponentially decaying curve makes 80 % of its remaining gain."""
        if self.gain_ratio >= 1:
            return 3.0
        remaining_windows = math.log(0.2) / math.log(max(self.gain_ratio, 1e-3))
        return min(max(1 + remaining_windows * self.window_share, 1.5), 3.0)


@dataclass(frozen=True, slots=True)
class Plateau:
    """The flat end of one training curve. Costs are given as shares of the run's gain, and steps as shares of the run's steps."""

    settled_share: float
    """Share of the steps after which the smoothed curve stays within the tolerance of its final level."""
    tolerance: float
    """The requested tolerance or, if larger, twice the scatter of the evaluations."""
    rise: float
    """Final level of the smoothed curve minus its lowest point."""
    late_gain_bound: float
    """Upper 95 % bound of the gain after `margin` times the settling time; inf if too few evaluations remain."""
    late_rise_bound: float
    """Upper 95 % bound of the rise after `margin` times the settling time; inf if too few evaluations remain."""

    def is_flat(self, max_change: float) -> bool:
        """Return True if the curve changes by at most `max_change` on its plateau, and ends close to its lowest level."""
        return max(self.late_gain_bound, self.late_rise_bound) <= max_change and self.rise <= 2 * self.tolerance


def read_curve_end(steps: IntArray, costs: FloatArray, *, tail: float = 0.2) -> CurveEnd | None:
    """Return the end of the curve with finite `costs` at increasing `steps`, shape (n,); None if the curve is too short or has
    no gain. The window is the last share `tail` of the steps, or more if it must be longer to contain 5 evaluations, but at
    most half."""
    curve = _normalise_curve(steps, costs)
    if curve is None:
        return None
    tail_share = min(max(tail, 1 - float(curve.step_shares[-MIN_LATE_POINTS])), 0.5)
    in_window = curve.step_shares >= 1 - tail_share - 1e-9
    is_before = (curve.step_shares >= 1 - 2 * tail_share - 1e-9) & (curve.step_shares <= 1 - tail_share + 1e-9)
    gain, error = _fitted_gain(curve, in_window, tail_share)
    earlier_gain = _fitted_gain(curve, is_before, tail_share)[0]
    p_slope = float(stats.t.sf(gain / error, curve.freedom)) if error > 0 else float(gain <= 0)
    changes = np.diff(curve.costs[in_window])
    p_signs = float(stats.binom.sf(np.sum(changes < 0) - 1, np.sum(changes != 0), 0.5)) if changes.any() else 1.0
    return CurveEnd(
        points=int(in_window.sum()),
        window_share=tail_share,
        gain=gain,
        error=error,
        scatter=curve.scatter,
        freedom=curve.freedom,
        gain_ratio=gain / earlier_gain if earlier_gain > 0 else 1.0,
        p_value=min(1.0, 2 * min(p_slope, p_signs)),
    )


def read_plateau(steps: IntArray, costs: FloatArray, *, tolerance: float, margin: float) -> Plateau | None:
    """Return the plateau of the curve with finite `costs` at increasing `steps`; None if the curve is too short or has no gain. The
    final level is the median over the last fifth of the steps. margin: the remaining gain is measured after this multiple of the
    settling time."""
    curve = _normalise_curve(steps, costs)
    if curve is None:
        return None
    tolerance = max(tolerance, 2 * curve.scatter)
    is_in_last_fifth = curve.step_shares >= 0.8
    final_level = float(np.median(curve.smooth[is_in_last_fifth]))
    indices_above = np.flatnonzero(curve.smooth > final_level + tolerance)
    first_settled = int(indices_above[-1]) + 1 if len(indices_above) else 0
    settled_share = float(curve.step_shares[min(first_settled, len(curve.step_shares) - 1)])
    measured_from = settled_share * margin
    is_remaining = curve.step_shares >= measured_from
    gain, margin_of_error = 0.0, math.inf
    if measured_from < 1 and is_remaining.sum() >= 3:
        gain, error = _fitted_gain(curve, is_remaining, 1 - measured_from)
        margin_of_error = float(stats.t.ppf(0.95, curve.freedom)) * error
    rise_above_lowest = final_level - float(curve.smooth.min())
    return Plateau(settled_share, tolerance, rise_above_lowest, gain + margin_of_error, margin_of_error - gain)


def distance_from_perfect_score(costs: FloatArray) -> float:
    """Return the final distance of `costs` from a perfect score, as a share of the initial distance; NaN if unknown.

    A perfect score is 0 if costs are never negative, and -1 for maximised shares. The initial cost is the first one, or the
    median of the first tenth if it is lower, because a loss may blow up at first. The final cost is the median of the last tenth.
    """
    if len(costs) < 2:
        return math.nan
    if costs.min() >= 0:
        perfect_cost = 0.0
    elif costs.min() >= -1 and costs.max() <= 0:
        perfect_cost = -1.0
    else:
        return math.nan
    initial_points = max(len(costs) // 10, min(3, len(costs) // 2))
    start, end = float(np.median(costs[:initial_points])), float(np.median(costs[-max(len(costs) // 10, 1) :]))
    first, last = min(float(costs[0]), start) - perfect_cost, end - perfect_cost
    return last / first if first > 0 else math.nan


def cost_after_gain(steps: IntArray, costs: FloatArray, share: float) -> float:
    """Return the cost after a further fall by `share` times the run's gain, on the scale of `read_curve_end`."""
    y = np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    best_index = int(np.argmin(y))
    if _starts_tenfold_higher(steps / max(float(steps[-1]), 1.0), y):
        return float(y[best_index] * (y[best_index] / y[: best_index + 1].max()) ** share)
    return float(y[best_index] - share * (y[: best_index + 1].max() - y[best_index]))


def _starts_tenfold_higher(t: FloatArray, y: FloatArray) -> bool:
    best, highest = float(y.min()), float(y[: int(np.argmin(y)) + 1].max())
    return best > 0 and highest >= _MIN_FALL_FOR_LOG * best and float(y[t >= 0.5].max()) <= 2 * best


@dataclass(frozen=True, slots=True)
class _NormalisedCurve:
    step_shares: FloatArray
    costs: FloatArray
    smooth: FloatArray
    scatter: float
    inflation: float
    freedom: float


def _normalise_curve(steps: IntArray, costs: FloatArray) -> _NormalisedCurve | None:
    if len(costs) < MIN_POINTS or steps[-1] <= 0 or steps[-MIN_LATE_POINTS] <= 0:
        return None
    t, y = _bin_means(steps / float(steps[-1]), np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE))
    best_index = int(np.argmin(y))
    if _starts_tenfold_higher(t, y):
        y = np.log(y)
    y = y / (float(np.abs(y).max()) or 1.0)
    # A running median over a twentieth of the curve removes single bad evaluations, and does not shift the start of the plateau.
    smooth_costs = np.asarray(median_filter(y, size=max(3, len(y) // 20) | 1, mode="nearest"), dtype=np.float64)
    total_gain = max(float(smooth_costs[: best_index + 1].max()), float(y[0])) - float(y[best_index])
    scatter, inflation, freedom = late_residual_scatter(t, y)
    if not total_gain > _MIN_GAIN_IN_SDS * scatter:
        return None
    return _NormalisedCurve(t, y / total_gain, smooth_costs / total_gain, scatter / total_gain, inflation, freedom)


def _bin_means(t: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a curve of more than 400 points as means over `_MAX_BINS` bins of equally many points. The last `t` is 1."""
    if len(y) <= 2 * _MAX_BINS:
        return t, y
    bin_of_point = np.arange(len(y)) * _MAX_BINS // len(y)
    points_per_bin = np.bincount(bin_of_point)
    t, y = np.bincount(bin_of_point, t) / points_per_bin, np.bincount(bin_of_point, y) / points_per_bin
    return t / t[-1], y


def _fitted_gain(curve: _NormalisedCurve, part: BoolArray, window: float) -> tuple[float, float]:
    """Return (gain over a window, its standard error) from a straight line through the points in the mask `part`."""
    if part.sum() < 2:
        return 0.0, math.inf
    x, y = curve.step_shares[part] - curve.step_shares[part].mean(), curve.costs[part]
    sum_of_squares = float(x @ x)
    return -float(x @ y) / sum_of_squares * window, window * curve.scatter * math.sqrt(curve.inflation / sum_of_squares)


def best_step_position(steps: IntArray, costs: FloatArray, *, total: float) -> tuple[float, float]:
    """Return (step of the best evaluation, step of the first evaluation that equals it within 3 standard deviations of noise),
    as shares of `total`. The noise is estimated from the second half of the curve, at least ten evaluations. costs: shape (n,),
    finite, n >= 1."""
    best_index = int(np.argmin(costs))
    first_late = max(min(len(costs) // 2, len(costs) - 10), 0)
    noise_deviation = noise_sd(np.clip(costs[first_late:], -MAX_FINITE_VALUE, MAX_FINITE_VALUE))
    is_equal_to_best = costs <= costs[best_index] + (3 * noise_deviation if math.isfinite(noise_deviation) else 0.0)
    return float(steps[best_index]) / total, float(steps[int(np.argmax(is_equal_to_best))]) / total
