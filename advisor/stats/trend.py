"""Analyses the end of a training curve: the forecast gain from doubling the training if the curve still falls, or else the start of
its plateau.

All quantities are shares: steps are shares of the run's steps, costs are shares of the run's gain (highest cost before the best,
minus the best). A log scale is used if a curve starts at ten times the level of its second half or more; on a linear scale, a first
cost in the thousands would make all later costs look flat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import MAX_FINITE_VALUE, BoolArray, FloatArray, IntArray
from advisor.stats.curve import MIN_LATE_POINTS, late_scatter, noise

MIN_POINTS = 8
"""Minimum number of evaluations to separate the end of a curve from its noise."""
LOW_SHAPE = 1 / 4
HIGH_SHAPE = 2.6
"""Bounds of the gain from doubling the training at a constant learning rate, as multiples of its forecast. The bounds hold for
nine of ten curves without noise, measured on real curves truncated at half their length: `benchmarks/quality/forecasts.py`.
"""
_NORMAL_QUANTILE_90 = 1.645
"""Quantile of the standard normal distribution for central 90 % intervals."""
_MAX_BINS = 200
_TENFOLD = 10.0
_MIN_GAIN = 6.0
"""Minimum gain of a run for its curve to be analysed, in standard deviations of the curve's noise."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of one curve. Costs are shares of the run's gain, steps are shares of its steps."""

    points: int
    """Number of evaluations in the window, the last part of the curve."""
    window: float
    """Share of the run's steps that the window covers."""
    gain: float
    """Gain over the window, from a straight line fitted to it; negative if the cost rose."""
    error: float
    """Standard error of the gain, widened for autocorrelated noise."""
    scatter: float
    """Standard deviation of the noise of one evaluation."""
    freedom: float
    """Degrees of freedom of the standard error."""
    slowing: float
    """Ratio of the gain over the window to the gain over the previous window; below 1, the curve levels off."""
    p: float
    """One-sided p-value of the gain over the window under the hypothesis of a flat curve with this noise.

    The value is twice the smaller p-value of two tests: a t-test of the slope, and a sign test of the differences between
    evaluations. The sign test is valid for any autocorrelation, and it detects a fall that is smooth but far from a straight line.
    """

    @property
    def reach(self) -> float:
        """Forecast gain from doubling the training, as a multiple of the gain over the window.

        The gain shrinks by the factor `slowing` from window to window, as in an exponential decay. The forecast assumes at most
        growth with the logarithm of the steps, as in a power law. This limit also reduces the effect of a drop of the curve due to
        learning-rate decay.
        """
        max_ratio = math.log(2) / -math.log1p(-self.window)
        ratio = max(self.slowing, 0.0)
        if ratio >= 1:
            return max_ratio
        return min(ratio * (1 - math.pow(ratio, 1 / self.window)) / (1 - ratio), max_ratio)

    @property
    def forecast(self) -> float:
        """Forecast gain from doubling the training, as a share of the run's gain."""
        return self.gain * self.reach

    def forecast_interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return (low, high) bounds at probability `level` of the gain of the best evaluation from doubling the training.

        Two errors add up: the noise of the evaluations, and the unknown shape of the curve, which `LOW_SHAPE` and `HIGH_SHAPE`
        describe. The low bound is at least 0, because longer training cannot lose the best evaluation so far.
        """
        forecast, z_score = max(self.forecast, 0.0), float(stats.norm.ppf(0.5 + level / 2))
        noise = float(stats.t.ppf(0.5 + level / 2, self.freedom)) * self.error * self.reach
        low = forecast - math.hypot(noise, forecast * (1 - LOW_SHAPE ** (z_score / _NORMAL_QUANTILE_90)))
        high = forecast + math.hypot(
            noise, z_score * self.scatter, forecast * (HIGH_SHAPE ** (z_score / _NORMAL_QUANTILE_90) - 1)
        )
        return max(low, 0.0), high

    def part_of_forecast(self, times: float) -> float:
        """Return the share of the forecast gain that training `times` as long brings: 0 for `times` = 1, and 1 for 2 or more."""
        extra = min(max(times - 1, 0.0), 1.0)
        if self.slowing <= 0 or self.slowing >= 1:
            return extra
        return (1 - math.pow(self.slowing, extra / self.window)) / (1 - math.pow(self.slowing, 1 / self.window))

    def chance_above(self, material: float) -> float:
        """Return the probability that the forecast gain exceeds `material`; only the noise is taken into account."""
        if self.reach <= 0:
            return 0.0
        if self.error <= 0:
            return float(self.forecast > material)
        return float(stats.t.sf((material / self.reach - self.gain) / self.error, self.freedom))

    def improving(self, material: float, alpha: float) -> bool:
        """Return True if the curve falls significantly at level `alpha` and the forecast gain exceeds `material`."""
        return self.p <= alpha and self.forecast > material

    @property
    def stretch(self) -> float:
        """Factor on the number of steps, 1.5 to 3, after which an exponentially decaying curve has made four fifths of its
        remaining gain.
        """
        if self.slowing >= 1:
            return 3.0
        windows = math.log(0.2) / math.log(max(self.slowing, 1e-3))
        return min(max(1 + windows * self.window, 1.5), 3.0)


@dataclass(frozen=True, slots=True)
class Plateau:
    """The flat end of one curve. Costs are shares of the run's gain, steps are shares of its steps."""

    settled: float
    """Share of the steps after which the smoothed curve is at most `tolerance` above its final level."""
    tolerance: float
    """The requested tolerance, or twice the scatter of the evaluations if that is larger."""
    rise: float
    """Rise of the smoothed curve: its final level minus its lowest point."""
    rest: float
    """Upper 95 % confidence bound of the gain after the share `settled` * `margin` of the steps; infinite if no steps remain."""
    loss: float
    """Upper 95 % confidence bound of the rise of the curve after the same share of the steps."""

    def flat(self, max_change: float) -> bool:
        """Return True if the curve changes by at most `max_change` after the start of its plateau, and its final level is close to
        its lowest.
        """
        return max(self.rest, self.loss) <= max_change and self.rise <= 2 * self.tolerance


def read_end(steps: IntArray, costs: FloatArray, *, tail: float = 0.2) -> End | None:
    """Return the end of the curve of finite `costs` (n,) at increasing `steps` (n,).

    Return None if the curve is too short or gained nothing. The window is the last share `tail` of the steps. A window with
    fewer than 5 evaluations is extended to at most half of the steps.
    """
    curve = _normalise_curve(steps, costs)
    if curve is None:
        return None
    window = min(max(tail, 1 - float(curve.t[-MIN_LATE_POINTS])), 0.5)
    in_window = curve.t >= 1 - window - 1e-9
    is_before = (curve.t >= 1 - 2 * window - 1e-9) & (curve.t <= 1 - window + 1e-9)
    gain, error = _gain_of_line(curve, in_window, window)
    earlier = _gain_of_line(curve, is_before, window)[0]
    return End(
        points=int(in_window.sum()),
        window=window,
        gain=gain,
        error=error,
        scatter=curve.scatter,
        freedom=curve.freedom,
        slowing=gain / earlier if earlier > 0 else 1.0,
        p=min(1.0, 2 * min(_t_test_p_value(gain, error, curve.freedom), _sign_test_p_value(curve.y[in_window]))),
    )


def read_plateau(steps: IntArray, costs: FloatArray, *, tolerance: float, margin: float) -> Plateau | None:
    """Return the plateau of finite `costs` (n,) at increasing `steps` (n,); None if the curve is too short or gained nothing.

    The final level is the median over the last fifth of the steps. margin: factor on `Plateau.settled` after which the remaining
    gain is measured.
    """
    curve = _normalise_curve(steps, costs)
    if curve is None:
        return None
    tolerance = max(tolerance, 2 * curve.scatter)
    last_fifth = curve.t >= 0.8
    level = float(np.median(curve.smooth[last_fifth]))
    above = np.flatnonzero(curve.smooth > level + tolerance)
    first = int(above[-1]) + 1 if len(above) else 0
    settled = float(curve.t[min(first, len(curve.t) - 1)])
    start = settled * margin
    remaining = curve.t >= start
    gain, margin_of_error = 0.0, math.inf
    if start < 1 and remaining.sum() >= 3:
        gain, error = _gain_of_line(curve, remaining, 1 - start)
        margin_of_error = float(stats.t.ppf(0.95, curve.freedom)) * error
    rise = level - float(curve.smooth.min())
    return Plateau(
        settled=settled, tolerance=tolerance, rise=rise, rest=gain + margin_of_error, loss=margin_of_error - gain
    )


def distance_from_perfect(costs: FloatArray) -> float:
    """Return the final distance of `costs` (n,) from a perfect score, as a share of the initial distance; NaN if unknown.

    A perfect score is 0 for costs that are never negative (losses, error rates) and -1 for maximised shares (accuracy); other costs
    have no known minimum. The initial cost is the first cost, or the median of the first tenth if this median is lower, because a
    loss may blow up at first. The final cost is the median of the last tenth.
    """
    if len(costs) < 2:
        return math.nan
    if costs.min() >= 0:
        floor = 0.0
    elif costs.min() >= -1 and costs.max() <= 0:
        floor = -1.0
    else:
        return math.nan
    tenth = max(len(costs) // 10, min(3, len(costs) // 2))
    start, end = float(np.median(costs[:tenth])), float(np.median(costs[-max(len(costs) // 10, 1) :]))
    first, last = min(float(costs[0]), start) - floor, end - floor
    return last / first if first > 0 else math.nan


def cost_after(steps: IntArray, costs: FloatArray, share: float) -> float:
    """Return the cost after the best cost falls further by `share` times the run's gain, measured on the scale (log or linear) of
    `read_end`.
    """
    y = np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    best = int(np.argmin(y))
    if _starts_tenfold_higher(steps / max(float(steps[-1]), 1.0), y):
        return float(y[best] * (y[best] / y[: best + 1].max()) ** share)
    return float(y[best] - share * (y[: best + 1].max() - y[best]))


def _starts_tenfold_higher(t: FloatArray, y: FloatArray) -> bool:
    """Return True if the curve starts at ten times the level of its second half or more."""
    best = int(np.argmin(y))
    return bool(y[best] > 0 and y[: best + 1].max() >= _TENFOLD * y[best] and y[t >= 0.5].max() <= 2 * y[best])


@dataclass(frozen=True, slots=True)
class _NormalisedCurve:
    """A curve in shares of the run's steps (`t`) and of the run's gain (`y`, `smooth`, `scatter`)."""

    t: FloatArray
    y: FloatArray
    smooth: FloatArray
    scatter: float
    inflation: float
    """Factor by which autocorrelation increases the variance of a mean or a slope."""
    freedom: float


def _normalise_curve(steps: IntArray, costs: FloatArray) -> _NormalisedCurve | None:
    if len(costs) < MIN_POINTS or steps[-1] <= 0 or steps[-MIN_LATE_POINTS] <= 0:
        return None
    t, y = _bin_means(steps / float(steps[-1]), np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE))
    best = int(np.argmin(y))
    if _starts_tenfold_higher(t, y):
        y = np.log(y)
    y = y / (float(np.abs(y).max()) or 1.0)
    # A window of a twentieth of the curve is long enough to remove a single bad evaluation, and too short to shift the start of the
    # plateau.
    smooth = np.asarray(median_filter(y, size=max(3, len(y) // 20) | 1, mode="nearest"), dtype=np.float64)
    gain = max(float(smooth[: best + 1].max()), float(y[0])) - float(y[best])
    scatter, inflation, freedom = late_scatter(t, y)
    if not gain > _MIN_GAIN * scatter:
        return None
    return _NormalisedCurve(t, y / gain, smooth / gain, scatter / gain, inflation, freedom)


def _bin_means(t: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return means over `_MAX_BINS` bins of equal size if there are more than 400 points; the end of `t` stays 1."""
    if len(y) <= 2 * _MAX_BINS:
        return t, y
    bins = np.arange(len(y)) * _MAX_BINS // len(y)
    counts = np.bincount(bins)
    t, y = np.bincount(bins, t) / counts, np.bincount(bins, y) / counts
    return t / t[-1], y


def _t_test_p_value(gain: float, error: float, freedom: float) -> float:
    if error <= 0:
        return 0.0 if gain > 0 else 1.0
    return float(stats.t.sf(gain / error, freedom))


def _sign_test_p_value(y: FloatArray) -> float:
    """Return the p-value of a sign test that falls of the values outnumber rises."""
    steps = np.diff(y)
    falls, moves = int(np.sum(steps < 0)), int(np.sum(steps != 0))
    return float(stats.binom.sf(falls - 1, moves, 0.5)) if moves else 1.0


def _gain_of_line(curve: _NormalisedCurve, part: BoolArray, window: float) -> tuple[float, float]:
    """Return (gain over the window, its standard error) of a line fitted to the points of `part`."""
    if part.sum() < 2:
        return 0.0, math.inf
    x, y = curve.t[part] - curve.t[part].mean(), curve.y[part]
    sum_of_squares = float(x @ x)
    return -float(x @ y) / sum_of_squares * window, window * curve.scatter * math.sqrt(curve.inflation / sum_of_squares)


def step_position(steps: IntArray, costs: FloatArray, *, total: float) -> tuple[float, float]:
    """Return the steps of the best evaluation and of the first evaluation that equals it within noise, as shares of `total` steps.

    costs: (n,), finite, n >= 1. Two costs are equal within noise if they differ by at most 3 standard deviations of the noise,
    which is estimated from the second half or the last ten evaluations, whichever is longer. If the noise cannot be estimated, the
    costs must be identical.
    """
    best = int(np.argmin(costs))
    first_late = max(min(len(costs) // 2, len(costs) - 10), 0)
    sigma = noise(np.clip(costs[first_late:], -MAX_FINITE_VALUE, MAX_FINITE_VALUE))
    equals_best = costs <= costs[best] + (3 * sigma if math.isfinite(sigma) else 0.0)
    return float(steps[best]) / total, float(steps[int(np.argmax(equals_best))]) / total
