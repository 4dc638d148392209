"""A test for periodicity of an evenly spaced noisy series: does a period stand out from the noise spectrum?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import uniform_filter1d

from advisor.model.space import FloatArray, IntArray
from advisor.stats.curve import HUGE

MIN_POINTS = 32
"""Minimum number of points to fit a smooth spectrum."""
_MIN_CYCLES = 4
"""Minimum number of periods in the series; slower oscillations count as trend."""
_MIN_PERIOD = 2.2
"""Minimum period, in points. Negatively autocorrelated noise oscillates with shorter periods."""
_FINER = 4
"""Ratio of the padded periodogram's frequency resolution to that of the series."""
_HARMONICS = (1, 2, 4)
"""Numbers of harmonics whose powers are added."""
_MAX_MOVE = 4.0
"""Maximum change from point to point, in units of the changes' scatter; larger changes are clipped."""


@dataclass(frozen=True, slots=True)
class Periodicity:
    """The period that stands out most from the noise spectrum."""

    period: float
    """Period of the series, in points."""
    p: float
    """p-value of the period, corrected for all frequencies: probability that noise of the same spectrum has one as strong."""
    share: float
    """Share of the variance of the detrended point-to-point changes that repeats with the period."""


def periodicity(values: FloatArray, period: float | None = None) -> Periodicity | None:
    """Return the strongest period of a finite, evenly spaced series (n,); None if it is shorter than 32 points or constant.

    period: known period to test, in points; if it is too short or too long for the series, return None. The tapered periodogram is
    compared with a smooth spectrum fitted to its logarithm (a constant, a power of the frequency for long-memory noise, a few
    cosines), so that slow random drift is not taken for a period. Non-sinusoidal periods spread over harmonics, so the powers of 1,
    2 and 4 harmonics are added.
    """
    y = _prepare(values)
    if y is None:
        return None
    n = len(y)
    length = _FINER * n
    power = np.abs(np.fft.rfft(y * np.hanning(n + 2)[1:-1], length)) ** 2
    at = np.arange(len(power)) / length
    ratio, freedom = _whitened(power, at)
    chosen = _candidates(n, period)
    chosen = chosen[chosen < len(at)]
    if not len(chosen):
        return None
    tries = len(_HARMONICS) * len(chosen)
    best, at_best = math.inf, 0
    for count in _HARMONICS:
        total = np.zeros(len(chosen))
        harmonics = np.zeros(len(chosen))
        for h in range(1, count + 1):
            index = h * chosen
            inside = index < len(ratio)
            total[inside] += ratio[index[inside]]
            harmonics += inside
        p = stats.f.sf(total / harmonics, 2 * harmonics, 2 * freedom)
        i = int(np.argmin(p))
        if p[i] < best:
            best, at_best = float(p[i]), int(chosen[i])
    strongest = length / max(at_best, 1)
    return Periodicity(strongest, min(1.0, tries * best), _explained(y, strongest))


def _prepare(values: FloatArray) -> FloatArray | None:
    """Return detrended point-to-point changes after the first tenth, in units of their local scatter; None for a constant series.

    Changes are used because a large fall of the values would leave its shape in any residual. The scatter is local because curves
    become calmer as they flatten.
    """
    if len(values) < MIN_POINTS:
        return None
    y = np.clip(values, -HUGE, HUGE)
    if y.min() > 0 and y[: len(y) // 10 + 1].max() > 10 * np.median(y):
        y = np.log(y)
    moves = np.diff(y[len(y) // 10 :])
    moves = moves / (float(np.abs(moves).max()) or 1.0)
    width = max(len(moves) // 4, 8) | 1
    moves = moves - uniform_filter1d(moves, width, mode="nearest")
    scatter = uniform_filter1d(np.abs(moves), width, mode="nearest") * math.sqrt(math.pi / 2)
    if not scatter.mean() > 1e-12:
        return None
    moves = np.clip(moves / np.maximum(scatter, 0.1 * scatter.mean()), -_MAX_MOVE, _MAX_MOVE)
    return np.asarray(moves - moves.mean(), dtype=np.float64)


def _candidates(n: int, period: float | None) -> IntArray:
    """Return the indices of the fundamental frequencies to test, on the padded grid."""
    slowest, fastest = _FINER * _MIN_CYCLES, int(_FINER * n / _MIN_PERIOD)
    if period is None:
        return np.arange(slowest, fastest + 1)
    # Include half a frequency on either side, because the period may drift slightly.
    middle = _FINER * n / period
    near = np.arange(math.floor(middle - _FINER / 2), math.ceil(middle + _FINER / 2) + 1)
    return near[(near >= slowest) & (near <= fastest)] if slowest <= middle <= fastest else near[:0]


def _whitened(power: FloatArray, at: FloatArray) -> tuple[FloatArray, float]:
    """Return (power divided by the smooth spectrum, number of independent values in the estimate)."""
    own = np.arange(_FINER, len(power), _FINER)
    w = 2 * math.pi * at
    cosines = 2 + (len(own) >= 40) + (len(own) >= 80) + (len(own) >= 160)
    memory = np.log(np.maximum(4 * np.sin(w / 2) ** 2, 1e-12))
    basis = np.stack([np.ones_like(w), memory, *(np.cos(k * w) for k in range(1, cosines + 1))], 1)
    # The log of an exponential variable has a mean lower by Euler's constant than the log of the variable's mean.
    logs = np.log(np.maximum(power, 1e-300)) + np.euler_gamma
    smooth = basis @ np.linalg.lstsq(basis[own], logs[own], rcond=None)[0]
    # A peak would raise the fit, so cap it at the largest value expected by chance.
    limit = smooth[own] + math.log(math.log(len(own) / 0.05))
    smooth = basis @ np.linalg.lstsq(basis[own], np.minimum(logs[own], limit), rcond=None)[0]
    freedom = max((len(own) - basis.shape[1]) / 2, 2.0)
    return np.asarray(np.exp(np.minimum(logs - np.euler_gamma - smooth, 700.0)), dtype=np.float64), freedom


def _explained(y: FloatArray, period: float) -> float:
    t = np.arange(len(y)) / period
    waves = [f(2 * math.pi * h * t) for h in range(1, max(_HARMONICS) + 1) if 2 * h <= period for f in (np.sin, np.cos)]
    if not waves:
        return 0.0
    columns = np.stack(waves, 1)
    fitted = columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    left, size = float(np.sum((y - fitted) ** 2)), float(np.sum(y**2))
    return max(0.0, 1 - (left / max(len(y) - len(waves), 1)) / (size / len(y)))
