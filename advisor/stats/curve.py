"""Measures noisy curves: their noise, their best level, and rises above their best level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import special
from scipy.linalg import blas

from advisor.model.space import MAX_FINITE_VALUE, FloatArray, IntArray

MIN_POINTS = 6
"""Minimum number of points to estimate the noise of a curve and to test whether it rises."""
_WINDOW_SHARE = 0.1
"""Width of a window of points whose median is a level of the curve, as a share of all points of the curve."""
_MEDIAN_ERROR_FACTOR = math.sqrt(math.pi / 2)
_MAX_RELATIVE_ROUNDING = 2 * float(np.finfo(np.float32).eps)
"""Maximum second difference that counts as a rounding error of 32-bit floats, as a share of the values."""
MIN_LATE_POINTS = 5
"""Minimum number of points at the end of a curve to which a polynomial is fitted."""
_DEFAULT_INFLATION = 2.0
"""Factor by which autocorrelation inflates the variance if it is unknown (lag-1 correlation of 1/3)."""


def noise_sd(values: FloatArray) -> float:
    """Return a robust standard deviation of the noise between neighbouring points; NaN for n < 5. values: shape (n,), finite,
    evenly spaced. A smooth trend cancels in second differences, whose variance is 6 sigma^2 for white noise."""
    if len(values) < 5:
        return float("nan")
    second_differences = values[:-2] - 2 * values[1:-1] + values[2:]
    return float(np.median(np.abs(second_differences)) / 0.6745 / np.sqrt(6))


def late_residual_scatter(t: FloatArray, y: FloatArray) -> tuple[float, float, float]:
    """Return (standard deviation, variance inflation, degrees of freedom) of the residuals of a cubic polynomial that is fitted to
    the second half of a curve.

    t, y: times from 0 to 1 and values, shape (n,), n >= `MIN_LATE_POINTS`. Variance inflation is the factor by which
    autocorrelation increases the variance of a mean or slope.
    """
    first_late_index = min(int(np.searchsorted(t, 0.5)), len(t) - MIN_LATE_POINTS)
    x, z = t[first_late_index:] - t[first_late_index:].mean(), y[first_late_index:]
    n, degree = len(z), 3 if len(z) >= 10 else 2
    residuals = z - np.polyval(np.polyfit(x, z, degree), x)
    sum_of_squares = float(residuals @ residuals)
    degrees_of_freedom = n - degree - 1
    residual_sd = math.sqrt(sum_of_squares / degrees_of_freedom)
    if n < 10 or sum_of_squares == 0:
        return residual_sd, _DEFAULT_INFLATION, float(degrees_of_freedom)
    lag = float(residuals[1:] @ residuals[:-1]) / sum_of_squares
    # Fitting a line lowers the estimated autocorrelation by about (1 + 4 lag) / n, and fitting a cubic by twice as much.
    lag = min(max(lag + 2 * (1 + 4 * lag) / n, 0.0), 0.9)
    inflation = (1 + lag) / (1 - lag)
    residual_sd = math.sqrt(sum_of_squares / max(n - _variance_absorbed_by_fit(x, degree, lag), 1.0))
    return max(residual_sd, noise_sd(z)), inflation, max(n / inflation - degree - 1, 2.0)


def smooth_savgol(y: FloatArray, window: int) -> FloatArray:
    """Return a curve, shape (n,), smoothed by a Savitzky-Golay filter of degree 2 over an odd number `window` of points. The result
    equals that of `scipy.signal.savgol_filter`, whose import takes longer than the analysis of most studies."""
    polynomial_basis = np.linalg.qr(np.vander(np.linspace(-1.0, 1.0, window), 3))[0]
    projection, half = polynomial_basis @ polynomial_basis.T, window // 2
    smooth_middle = np.convolve(y, projection[half], mode="valid")
    return np.concatenate([projection[:half] @ y[:window], smooth_middle, projection[half + 1 :] @ y[-window:]])


def _variance_absorbed_by_fit(x: FloatArray, degree: int, lag: float) -> float:
    """Return n times the share of the variance of AR(1) noise that a fitted polynomial absorbs; degree + 1 for white noise."""
    polynomial_basis = np.linalg.qr(np.vander(x / (np.abs(x).max() or 1.0), degree + 1))[0]
    if lag <= 0:
        return float(degree + 1)
    filter_band = np.array([[1.0], [-lag]]) * np.ones(len(x))
    # blas.dtbsv solves (1 - lag * shift) x = column, which applies an AR(1) filter.
    forward, backward = (
        np.stack([blas.dtbsv(1, filter_band, column, lower=1) for column in columns], axis=1)
        for columns in (polynomial_basis.T, polynomial_basis[::-1].T)
    )
    return float(np.sum(polynomial_basis * (forward + backward[::-1] - polynomial_basis)))


@dataclass(frozen=True, slots=True)
class LevelRise:
    """A rise of a curve's cost above its best level. A level is the median over a tenth of the points."""

    best_index: int
    """Index of the middle of the window with the lowest level."""
    best_level: float
    level: float
    """Level that is compared with the best level, such as the level at the end of the curve, or the value of a single point."""
    error: float
    """Standard error of the difference between the two levels, including noise that lasts over a whole window."""
    p_value: float
    """p-value of the hypothesis that the true curve never rises, corrected for the choice of the lowest of many levels."""
    gain: float
    """Highest level of the curve minus its lowest level."""

    @property
    def height(self) -> float:
        """Size of the rise; negative if the curve ends at its best level."""
        return self.level - self.best_level

    @property
    def share(self) -> float:
        """Size of the rise as a share of the curve's range of levels; 0 for a constant curve."""
        return self.height / self.gain if self.gain > 0 else 0.0


def rise_at_end(costs: FloatArray) -> LevelRise | None:
    """Return the rise of the end of the curve `costs`, (n,), finite, above its best level; None for fewer than 6 points."""
    return _rise_above_best(costs, None)


def rise_at_point(costs: FloatArray, at: int) -> LevelRise | None:
    """Return the rise of the cost at index `at` above the curve's best level; None for fewer than 6 points."""
    return _rise_above_best(costs, at)


def rise_of_level(costs: FloatArray, level: float, error: float = 0.0) -> LevelRise | None:
    """Return the rise of `level`, with standard error `error`, above the best level of the curve; None for fewer than 6 points."""
    return _rise_above_best(costs, None, level, error)


def _rise_above_best(costs: FloatArray, at: int | None, level: float | None = None, own_error: float = 0.0) -> LevelRise | None:
    n = len(costs)
    if n < MIN_POINTS:
        return None
    y = np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    width = _window_width(n)
    stride = _window_stride(width)
    levels = _window_medians(y, width)
    end = float(np.median(y[-width:]))
    # The window of the best level must not overlap the window at the end of the curve.
    candidates = levels[: (n - 2 * width) // stride + 1] if at is None and level is None else levels
    best_window = int(np.argmin(candidates))
    best_level = float(candidates[best_window])
    best_error = _level_error(y, levels, width)
    if level is None:
        level = end if at is None else float(y[at])
        own_error = best_error if at is None else max(_noise_or_resolution(y), best_error, _point_error(y, at, width))
    error = math.hypot(best_error, own_error)
    return LevelRise(
        best_index=best_window * stride + width // 2,
        best_level=best_level,
        level=level,
        error=error,
        p_value=min(1.0, n / width * _one_sided_p_of_levels(level - best_level, error, n, width)),
        gain=max(float(levels.max()), end) - min(best_level, end),
    )


@dataclass(frozen=True, slots=True)
class CurveChange:
    """The change of a curve from its level around one point to its level at the end, with one-sided p-values."""

    before: float
    after: float
    fall_p_value: float
    rise_p_value: float


def change_since(values: FloatArray, index: int) -> CurveChange | None:
    """Return the change from the level around `index` to the level at the end; None for n < 6. values: (n,), finite."""
    n = len(values)
    if n < MIN_POINTS:
        return None
    y = np.clip(values, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    width = _window_width(n)
    start = min(max(index - width // 2, 0), n - width)
    before, after = float(np.median(y[start : start + width])), float(np.median(y[-width:]))
    error = math.sqrt(2) * _level_error(y, _window_medians(y, width), width)
    fall, rise = (_one_sided_p_of_levels(difference, error, n, width) for difference in (before - after, after - before))
    return CurveChange(before, after, fall, rise)


def gain_share_after(steps: IntArray, costs: FloatArray, *, after: float) -> float:
    """Return the share of the total gain (first cost minus lowest cost) that came after step `after`; 0 without a gain."""
    costs = np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    total_gain = float(costs[0] - costs.min())
    costs_before = costs[steps <= after]
    if total_gain <= 0 or not len(costs_before):
        return 0.0 if total_gain <= 0 else 1.0
    return float(costs_before.min() - costs.min()) / total_gain


def _window_width(n: int) -> int:
    return max(1, round(_WINDOW_SHARE * n))


def _noise_or_resolution(y: FloatArray) -> float:
    """Return `noise_sd(y)` or, for a coarse metric, the standard deviation from the root mean square of second differences."""
    robust_noise = noise_sd(y)
    if robust_noise > _MAX_RELATIVE_ROUNDING * np.abs(y).max():
        return robust_noise
    second_differences = y[:-2] - 2 * y[1:-1] + y[2:]
    return float(np.sqrt(np.mean(second_differences**2) / 6))


def _point_error(y: FloatArray, at: int, width: int) -> float:
    """Return the standard deviation of single points in the second half, without points near `at`; 0 for too few points."""
    distant = np.delete(y, slice(max(at - width, 0), at + width + 1))
    n = len(distant)
    return late_residual_scatter(np.arange(n) / n, distant)[0] if n >= 2 * MIN_LATE_POINTS else 0.0


def _window_stride(width: int) -> int:
    """Return the number of points from the start of one window to the next."""
    return max(1, width // 4)


def _window_medians(y: FloatArray, width: int) -> FloatArray:
    return np.asarray(np.median(sliding_window_view(y, width)[:: _window_stride(width)], axis=1), dtype=np.float64)


def _level_error(y: FloatArray, levels: FloatArray, width: int) -> float:
    """Return the standard error of a level: the larger of two estimates, from the noise of points and from the scatter of
    levels. Only the scatter of levels contains noise that lasts over many points. The scatter is computed from third
    differences between adjacent windows, which cancel trend and curvature and have 20 times the variance of a level."""
    error_from_noise = _noise_or_resolution(y) / math.sqrt(width) * (_MEDIAN_ERROR_FACTOR if width > 2 else 1.0)
    if width < 2:
        return error_from_noise
    lag = round(width / _window_stride(width))
    third_differences = levels[3 * lag :] - 3 * levels[2 * lag : -lag] + 3 * levels[lag : -2 * lag] - levels[: -3 * lag]
    return max(error_from_noise, float(np.median(np.abs(third_differences))) / 0.6745 / math.sqrt(20))


def _one_sided_p_of_levels(difference: float, error: float, n: int, width: int) -> float:
    """Return the one-sided p-value of a difference between two levels, with degrees of freedom that suit white noise."""
    if error <= 0:
        return 0.0 if difference > 0 else 1.0
    return float(special.stdtr(6.0 if width > 1 else 0.45 * n, -difference / error))


def first_diverged_index(values: FloatArray) -> int | None:
    """Return the first index after which a curve, shape (n,), has no finite value; None if the curve is empty or ends finite."""
    if not len(values) or math.isfinite(values[-1]):
        return None
    finite_indices = np.flatnonzero(np.isfinite(values))
    return int(finite_indices[-1]) + 1 if len(finite_indices) else 0
