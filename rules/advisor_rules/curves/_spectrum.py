"""Periodicity of an evenly spaced noisy series: does a period stand out of the spectrum of its noise?"""

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
"""Minimum number of periods in the series; slower waves are trend."""
_MIN_PERIOD = 2.2
"""Minimum period in points. Negatively correlated noise zigzags with shorter ones."""
_FINER = 4
"""Frequencies of the padded periodogram per frequency of the series."""
_HARMONICS = (1, 2, 4)
"""Numbers of harmonics that are added up."""
_MAX_MOVE = 4.0
"""Moves from point to point are clipped to this many units of their scatter."""


@dataclass(frozen=True, slots=True)
class Periodicity:
    """The period that stands out most from the noise."""

    period: float
    """In points."""
    p: float
    """p-value of the period, corrected for all frequencies: noise of the same smooth spectrum has one as strong this often."""
    share: float
    """Share of the variance of the detrended moves from point to point that repeats with the period."""


def periodicity(values: FloatArray, period: float | None = None) -> Periodicity | None:
    """The strongest period of a finite, evenly spaced series (n,); None if it is shorter than 32 points or constant.

    period: the known period to test, in points; None is returned if it is too short or too long for the series. The tapered
    periodogram is compared with a smooth spectrum fitted to its logarithm (a constant, a power of the frequency for long-memory
    noise, a few cosines), so that wandering noise is no period. Periods that are not sinusoidal spread over harmonics, so 1, 2
    and 4 harmonics are added up.
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
    """Detrended moves from point to point after the first tenth, in units of their local scatter; None if nothing moves.

    Moves instead of values, because a large fall would leave its shape in any residual. Local scatter, because curves calm down
    as they flatten.
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
    """Indices of the fundamentals to test on the padded grid of frequencies."""
    slowest, fastest = _FINER * _MIN_CYCLES, int(_FINER * n / _MIN_PERIOD)
    if period is None:
        return np.arange(slowest, fastest + 1)
    # Half a frequency to either side: the period may drift a little.
    middle = _FINER * n / period
    near = np.arange(math.floor(middle - _FINER / 2), math.ceil(middle + _FINER / 2) + 1)
    return near[(near >= slowest) & (near <= fastest)] if slowest <= middle <= fastest else near[:0]


def _whitened(power: FloatArray, at: FloatArray) -> tuple[FloatArray, float]:
    """(power divided by the smooth spectrum, number of independent values in the estimate)."""
    own = np.arange(_FINER, len(power), _FINER)
    w = 2 * math.pi * at
    cosines = 2 + (len(own) >= 40) + (len(own) >= 80) + (len(own) >= 160)
    memory = np.log(np.maximum(4 * np.sin(w / 2) ** 2, 1e-12))
    basis = np.stack([np.ones_like(w), memory, *(np.cos(k * w) for k in range(1, cosines + 1))], 1)
    # The mean of the logarithm of an exponential variable is Euler's constant below the logarithm of its mean.
    logs = np.log(np.maximum(power, 1e-300)) + np.euler_gamma
    smooth = basis @ np.linalg.lstsq(basis[own], logs[own], rcond=None)[0]
    # A peak would pull the fit up: cap it at the largest value that chance gives.
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
