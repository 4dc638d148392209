"""Tests whether a period of an evenly spaced noisy series stands out from the noise spectrum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import uniform_filter1d

from advisor.model.space import MAX_FINITE_VALUE, FloatArray, IntArray

MIN_POINTS = 32
"""Minimum number of points to fit a smooth spectrum."""
_MIN_PERIOD_COUNT = 4
"""Minimum number of periods in the series; slower oscillations count as trend."""
_MIN_PERIOD_POINTS = 2.2
"""Minimum period, in points. Negatively autocorrelated noise oscillates with shorter periods."""
_ZERO_PADDING_FACTOR = 4
"""Factor by which zero padding refines the frequencies of the periodogram."""
_HARMONIC_COUNTS = (1, 2, 4)
"""Numbers of harmonics whose powers are added up; the test is made for each of these numbers."""
_MAX_SCALED_CHANGE = 4.0
"""Maximum point-to-point change, in units of the scatter of all changes; larger changes are clipped."""


@dataclass(frozen=True, slots=True)
class Periodicity:
    """The period that stands out most from the noise spectrum."""

    period: float
    """Period of the series, in points."""
    p_value: float
    """p-value: probability that noise with the same spectrum shows an equally strong period at some frequency."""
    explained_share: float
    """Share of the variance of the detrended point-to-point changes that repeats with the period."""


def find_strongest_period(values: FloatArray, period: float | None = None) -> Periodicity | None:
    """Return the strongest period of a finite, evenly spaced series (n,); None if the series is constant or has fewer than 32
    points.

    `period` is a known period to test, in points; the result is None if this period is too short or too long for the series.
    The tapered periodogram is compared with a smooth spectrum, so that slow random drift is not mistaken for a period. The
    smooth spectrum is fitted to the logarithm of the periodogram; its terms are a constant, a power of the frequency for
    long-memory noise, and a few cosines. The power of a non-sinusoidal period is spread over its harmonics, so the powers of 1,
    2 and 4 harmonics are added.
    """
    y = _detrend_changes(values)
    if y is None:
        return None
    n = len(y)
    length = _ZERO_PADDING_FACTOR * n
    power = np.abs(np.fft.rfft(y * np.hanning(n + 2)[1:-1], length)) ** 2
    frequencies = np.arange(len(power)) / length
    ratio, freedom = _whiten_power_spectrum(power, frequencies)
    candidates = _candidate_frequencies(n, period)
    candidates = candidates[candidates < len(frequencies)]
    if not len(candidates):
        return None
    tries = len(_HARMONIC_COUNTS) * len(candidates)
    best, at_best = math.inf, 0
    for count in _HARMONIC_COUNTS:
        summed_power = np.zeros(len(candidates))
        harmonics = np.zeros(len(candidates))
        for h in range(1, count + 1):
            index = h * candidates
            inside = index < len(ratio)
            summed_power[inside] += ratio[index[inside]]
            harmonics += inside
        p = stats.f.sf(summed_power / harmonics, 2 * harmonics, 2 * freedom)
        i = int(np.argmin(p))
        if p[i] < best:
            best, at_best = float(p[i]), int(candidates[i])
    strongest = length / max(at_best, 1)
    return Periodicity(strongest, min(1.0, tries * best), _explained_variance_share(y, strongest))


def _detrend_changes(values: FloatArray) -> FloatArray | None:
    """Return detrended point-to-point changes after the first tenth of the series, in units of their local scatter; None for a
    constant series.

    Point-to-point changes are used, because a large fall of the curve would remain visible in residuals from a smooth curve.
    The scatter is local, because curves become less noisy as they flatten.
    """
    if len(values) < MIN_POINTS:
        return None
    y = np.clip(values, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    if y.min() > 0 and y[: len(y) // 10 + 1].max() > 10 * np.median(y):
        y = np.log(y)
    moves = np.diff(y[len(y) // 10 :])
    moves = moves / (float(np.abs(moves).max()) or 1.0)
    width = max(len(moves) // 4, 8) | 1
    moves = moves - uniform_filter1d(moves, width, mode="nearest")
    scatter = uniform_filter1d(np.abs(moves), width, mode="nearest") * math.sqrt(math.pi / 2)
    if not scatter.mean() > 1e-12:
        return None
    moves = np.clip(moves / np.maximum(scatter, 0.1 * scatter.mean()), -_MAX_SCALED_CHANGE, _MAX_SCALED_CHANGE)
    return np.asarray(moves - moves.mean(), dtype=np.float64)


def _candidate_frequencies(n: int, period: float | None) -> IntArray:
    """Return the indices of the fundamental frequencies to test in the zero-padded periodogram."""
    slowest, fastest = _ZERO_PADDING_FACTOR * _MIN_PERIOD_COUNT, int(_ZERO_PADDING_FACTOR * n / _MIN_PERIOD_POINTS)
    if period is None:
        return np.arange(slowest, fastest + 1)
    # Include half a frequency step on either side, because the period may drift slightly.
    middle = _ZERO_PADDING_FACTOR * n / period
    indices = np.arange(math.floor(middle - _ZERO_PADDING_FACTOR / 2), math.ceil(middle + _ZERO_PADDING_FACTOR / 2) + 1)
    return indices[(indices >= slowest) & (indices <= fastest)] if slowest <= middle <= fastest else indices[:0]


def _whiten_power_spectrum(power: FloatArray, frequencies: FloatArray) -> tuple[FloatArray, float]:
    """Return (power divided by the smooth spectrum, half of the degrees of freedom of the smooth spectrum)."""
    independent = np.arange(_ZERO_PADDING_FACTOR, len(power), _ZERO_PADDING_FACTOR)
    w = 2 * math.pi * frequencies
    cosines = 2 + (len(independent) >= 40) + (len(independent) >= 80) + (len(independent) >= 160)
    memory = np.log(np.maximum(4 * np.sin(w / 2) ** 2, 1e-12))
    basis = np.stack([np.ones_like(w), memory, *(np.cos(k * w) for k in range(1, cosines + 1))], 1)
    # The log of an exponential variable has a mean lower by Euler's constant than the log of the variable's mean.
    logs = np.log(np.maximum(power, 1e-300)) + np.euler_gamma
    smooth = basis @ np.linalg.lstsq(basis[independent], logs[independent], rcond=None)[0]
    # A peak would raise the fitted spectrum, so cap the periodogram at the largest value expected by chance.
    limit = smooth[independent] + math.log(math.log(len(independent) / 0.05))
    smooth = basis @ np.linalg.lstsq(basis[independent], np.minimum(logs[independent], limit), rcond=None)[0]
    freedom = max((len(independent) - basis.shape[1]) / 2, 2.0)
    return np.asarray(np.exp(np.minimum(logs - np.euler_gamma - smooth, 700.0)), dtype=np.float64), freedom


def _explained_variance_share(y: FloatArray, period: float) -> float:
    t = np.arange(len(y)) / period
    waves = [f(2 * math.pi * h * t) for h in range(1, max(_HARMONIC_COUNTS) + 1) if 2 * h <= period for f in (np.sin, np.cos)]
    if not waves:
        return 0.0
    columns = np.stack(waves, 1)
    fitted_values = columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    residual_sum, size = float(np.sum((y - fitted_values) ** 2)), float(np.sum(y**2))
    return max(0.0, 1 - (residual_sum / max(len(y) - len(waves), 1)) / (size / len(y)))
