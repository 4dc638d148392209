"""Statistics of noisy curves: the noise, the best level, and rises above the best level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import special
from scipy.linalg import blas

from advisor.model.space import FloatArray

MIN_POINTS = 6
"""Minimum number of points to estimate a curve's noise and test for a rise."""
HUGE = 1e100
"""Maximum value that counts as finite. Only diverged runs have larger values, and squares of smaller values do not overflow."""
_WINDOW = 0.1
"""Width of the window whose median is a level of the curve, as a share of the curve's points."""
_MEDIAN_ERROR = math.sqrt(math.pi / 2)
_ROUNDING = 2 * float(np.finfo(np.float32).eps)
"""Maximum second difference of a curve that counts as a rounding error, as a share of the curve's values. Most metrics are 32-bit
floats.
"""
LATE_POINTS = 5
"""Minimum number of points in the second half of a curve, or at its end, to fit a line."""
_DEFAULT_INFLATION = 2.0
"""Variance inflation to assume if there are too few evaluations to estimate it: that of a lag-1 autocorrelation of 1/3."""


def noise(values: FloatArray) -> float:
    """Return the robust standard deviation of point-to-point noise, values (n,), finite, evenly spaced; NaN for n < 5.

    A smooth trend cancels in second differences, whose variance is 6 sigma^2 for white noise. The median ignores single jumps.
    """
    if len(values) < 5:
        return float("nan")
    second_differences = values[:-2] - 2 * values[1:-1] + values[2:]
    return float(np.median(np.abs(second_differences)) / 0.6745 / np.sqrt(6))


def late_scatter(t: FloatArray, y: FloatArray) -> tuple[float, float, float]:
    """Return (standard deviation, variance inflation, degrees of freedom) of the second half's residuals from a cubic.

    t, y: (n,), n >= `LATE_POINTS`. The inflation is the factor by which autocorrelation raises the variance of a mean or a slope.
    """
    start = min(int(np.searchsorted(t, 0.5)), len(t) - LATE_POINTS)
    x, z = t[start:] - t[start:].mean(), y[start:]
    n, degree = len(z), 3 if len(z) >= 10 else 2
    residual = z - np.polyval(np.polyfit(x, z, degree), x)
    squares = float(residual @ residual)
    degrees_of_freedom = n - degree - 1
    deviation = math.sqrt(squares / degrees_of_freedom)
    if n < 10 or squares == 0:
        return deviation, _DEFAULT_INFLATION, float(degrees_of_freedom)
    lag = float(residual[1:] @ residual[:-1]) / squares
    # Fitting a line reduces the autocorrelation by about (1 + 4 lag) / n, and fitting a cubic by twice that amount.
    lag = min(max(lag + 2 * (1 + 4 * lag) / n, 0.0), 0.9)
    inflation = (1 + lag) / (1 - lag)
    deviation = math.sqrt(squares / max(n - _variance_absorbed_by_fit(x, degree, lag), 1.0))
    return max(deviation, noise(z)), inflation, max(n / inflation - degree - 1, 2.0)


def smoothed(y: FloatArray, window: int) -> FloatArray:
    """Return the curve (n,), n >= window, smoothed by a Savitzky-Golay filter of degree 2 with an odd window.

    Equals `scipy.signal.savgol_filter`, which we avoid because its import takes longer than judging most studies.
    """
    basis = np.linalg.qr(np.vander(np.linspace(-1.0, 1.0, window), 3))[0]
    projection, half = basis @ basis.T, window // 2
    middle = np.convolve(y, projection[half], mode="valid")
    return np.concatenate([projection[:half] @ y[:window], middle, projection[half + 1 :] @ y[-window:]])


def _variance_absorbed_by_fit(x: FloatArray, degree: int, lag: float) -> float:
    """Return the share of the variance of AR(1) noise that a fitted polynomial absorbs, times n; x: (n,), evenly spaced.

    lag: lag-1 autocorrelation. For white noise, this share times n is degree + 1.
    """
    basis = np.linalg.qr(np.vander(x / (np.abs(x).max() or 1.0), degree + 1))[0]
    if lag <= 0:
        return float(degree + 1)
    band = np.array([[1.0], [-lag]]) * np.ones(len(x))
    # blas.dtbsv solves (1 - lag * shift) x = column, that is, applies an AR(1) filter.
    forward, backward = (
        np.stack([blas.dtbsv(1, band, column, lower=1) for column in columns], axis=1)
        for columns in (basis.T, basis[::-1].T)
    )
    return float(np.sum(basis * (forward + backward[::-1] - basis)))


@dataclass(frozen=True, slots=True)
class Rise:
    """The rise of a cost above the best level of its curve. A level is the median over a tenth of the curve."""

    best: int
    """Index of the middle of the window with the lowest level."""
    best_level: float
    level: float
    """The later level, which is compared with the best level: the level at the end of the curve, or the value of one point."""
    error: float
    """Standard error of the difference between the two levels, including noise that persists over a window."""
    p: float
    """p-value of the rise if the true curve never rises; corrected for the selection of the lowest of many levels."""
    gain: float
    """Highest minus lowest level of the curve; rises are expressed as shares of this gain."""

    @property
    def height(self) -> float:
        """The rise in the curve's unit; negative if the curve's end is its best level."""
        return self.level - self.best_level

    @property
    def share(self) -> float:
        """The rise as a share of the gain; 0 for a constant curve."""
        return self.height / self.gain if self.gain > 0 else 0.0


def end_rise(costs: FloatArray) -> Rise | None:
    """Return the rise of the end of a curve of costs (n,), finite, above its best level; None for fewer than 6 points."""
    return _rise(costs, None)


def point_rise(costs: FloatArray, at: int) -> Rise | None:
    """Return the rise of the cost at index `at` above the best level of costs (n,), finite; None for fewer than 6 points."""
    return _rise(costs, at)


def rise_over_lowest(costs: FloatArray, level: float, error: float = 0.0) -> Rise | None:
    """Return the rise of `level`, which has the standard error `error`, above the curve's best level; None for fewer
    than 6 points.
    """
    return _rise(costs, None, level, error)


def _rise(costs: FloatArray, at: int | None, level: float | None = None, level_error: float = 0.0) -> Rise | None:
    """Return the rise of the curve's end, of the point at index `at`, or of `level`, above the lowest level of the curve."""
    n = len(costs)
    if n < MIN_POINTS:
        return None
    y = np.clip(costs, -HUGE, HUGE)
    width = _window_width(n)
    stride = _window_stride(width)
    levels = _window_medians(y, width)
    end = _median(y[-width:])
    # If the best level is compared with the end of the curve, the two windows must not overlap.
    candidates = levels[: (n - 2 * width) // stride + 1] if at is None and level is None else levels
    best = int(np.argmin(candidates))
    best_level = float(candidates[best])
    best_error = _level_error(y, levels, width)
    if level is None:
        level = end if at is None else float(y[at])
        level_error = best_error if at is None else max(_noise_or_resolution(y), best_error, _point_error(y, at, width))
    error = math.hypot(best_error, level_error)
    return Rise(
        best=best * stride + width // 2,
        best_level=best_level,
        level=level,
        error=error,
        p=min(1.0, n / width * _one_sided_p(level - best_level, error, n, width)),
        gain=max(float(levels.max()), end) - min(best_level, end),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a curve's level from one point to the end of the curve."""

    before: float
    after: float
    p_fall: float
    """One-sided p-value of a fall of the level."""
    p_rise: float
    """One-sided p-value of a rise of the level."""


def change_since(values: FloatArray, index: int) -> Change | None:
    """Return the change of level from around `index` to the end of a curve of finite values (n,); None for fewer than 6 points."""
    n = len(values)
    if n < MIN_POINTS:
        return None
    y = np.clip(values, -HUGE, HUGE)
    width = _window_width(n)
    first = min(max(index - width // 2, 0), n - width)
    before, after = _median(y[first : first + width]), _median(y[-width:])
    error = math.sqrt(2) * _level_error(y, _window_medians(y, width), width)
    return Change(
        before, after, _one_sided_p(before - after, error, n, width), _one_sided_p(after - before, error, n, width)
    )


def _window_width(n: int) -> int:
    """Return the number of points in the window of a level."""
    return max(1, round(_WINDOW * n))


def _noise_or_resolution(y: FloatArray) -> float:
    """Return `noise(y)`, or the root mean square of the differences if most second differences are rounding errors (a coarse
    metric).
    """
    robust_noise = noise(y)
    if robust_noise > _ROUNDING * np.abs(y).max():
        return robust_noise
    second_differences = y[:-2] - 2 * y[1:-1] + y[2:]
    return float(np.sqrt(np.mean(second_differences**2) / 6))


def _point_error(y: FloatArray, at: int, width: int) -> float:
    """Return the standard deviation of single points, including autocorrelated noise; 0 if there are too few points.

    The noise comes from the second half of the curve. The window around index `at` is left out, because it is tested against this
    noise.
    """
    others = np.delete(y, slice(max(at - width, 0), at + width + 1))
    return late_scatter(np.arange(len(others)) / len(others), others)[0] if len(others) >= 2 * LATE_POINTS else 0.0


def _window_stride(width: int) -> int:
    """Return the number of points between the starts of two windows: a quarter of a window."""
    return max(1, width // 4)


def _window_medians(y: FloatArray, width: int) -> FloatArray:
    """Return the medians of the windows of a curve, one window per stride."""
    half, odd = width // 2, width % 2
    windows = np.partition(
        sliding_window_view(y, width)[:: _window_stride(width)], half if odd else (half - 1, half), axis=1
    )
    return np.asarray(windows[:, half] if odd else (windows[:, half - 1] + windows[:, half]) / 2, dtype=np.float64)


def _median(values: FloatArray) -> float:
    """Return the median of finite values (n,), n >= 1; several times faster than NumPy's median for few points."""
    half, odd = len(values) // 2, len(values) % 2
    parts = np.partition(values, half if odd else (half - 1, half))
    return float(parts[half] if odd else (parts[half - 1] + parts[half]) / 2)


def _level_error(y: FloatArray, levels: FloatArray, width: int) -> float:
    """Return the standard error of a curve's level: the larger of two estimates, from noise between points and from the scatter of
    levels.

    Only the scatter of levels includes noise that persists over many points. It is computed from third differences between adjacent
    windows, which remove trend and curvature and have 20 times the variance of a level.
    """
    error = _noise_or_resolution(y) / math.sqrt(width) * (_MEDIAN_ERROR if width > 2 else 1.0)
    if width < 2:
        return error
    lag = round(width / _window_stride(width))
    third_differences = levels[3 * lag :] - 3 * levels[2 * lag : -lag] + 3 * levels[lag : -2 * lag] - levels[: -3 * lag]
    return max(error, _median(np.abs(third_differences)) / 0.6745 / math.sqrt(20))


def _one_sided_p(difference: float, error: float, n: int, width: int) -> float:
    """Return the one-sided p-value of a difference between two levels of a curve, by a t-test whose degrees of freedom were fitted
    to simulated white noise.
    """
    if error <= 0:
        return 0.0 if difference > 0 else 1.0
    return float(special.stdtr(6.0 if width > 1 else 0.45 * n, -difference / error))


def diverged_at(values: FloatArray) -> int | None:
    """Return the index from which a curve (n,) is non-finite to its end; None if it ends finite or is empty."""
    if not len(values) or math.isfinite(values[-1]):
        return None
    finite = np.flatnonzero(np.isfinite(values))
    return int(finite[-1]) + 1 if len(finite) else 0
