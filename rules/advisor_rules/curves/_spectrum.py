"""Periodicity of evenly spaced noisy series: does some period stand out of the spectrum that the series' own noise has?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import uniform_filter1d

from advisor.model.space import FloatArray, IntArray
from advisor.stats.curve import HUGE

FEWEST = 32
"""Points below which a series' spectrum cannot be told from a peak in it."""
_CYCLES = 4
"""A period must fit this often into the series: slower waves are trend."""
_SHORTEST = 2.2
"""Points a period takes at least: shorter ones cannot be told from a simple zigzag, which noise of negative correlation makes."""
_FINER = 4
_HARMONICS = (1, 2, 4)
_WINSOR = 4.0


@dataclass(frozen=True, slots=True)
class Periodicity:
    """The period that stands out most."""

    period: float
    """In points."""
    p: float
    """How often a series without any, of the same smooth spectrum, has a period that stands out as much."""
    share: float
    """Share of the variance of the moves from point to point, less their trend, that repeats with the period."""


def periodicity(values: FloatArray, period: float | None = None) -> Periodicity | None:
    """The strongest period of a series (n,), finite and evenly spaced; None for fewer than 32 points or a series that never moves.

    period: the one to look for, in points, where it is known; one that is too short or too long to be seen gives None. The
    periodogram, tapered, is compared with a smooth spectrum fitted to its logarithm (a constant, a power of the frequency for
    noise with long memory, a few cosines for what is left), so that wandering noise is no period. Periods that are not sinusoidal
    spread over harmonics: 1, 2 and 4 of them are added up.
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
        seen = np.zeros(len(chosen))
        for h in range(1, count + 1):
            index = h * chosen
            inside = index < len(ratio)
            total[inside] += ratio[index[inside]]
            seen += inside
        p = stats.f.sf(total / seen, 2 * seen, 2 * freedom)
        i = int(np.argmin(p))
        if p[i] < best:
            best, at_best = float(p[i]), int(chosen[i])
    found = length / max(at_best, 1)
    return Periodicity(found, min(1.0, tries * best), _explained(y, found))


def _prepare(values: FloatArray) -> FloatArray | None:
    """The moves from point to point after the first tenth, less the trend, in units of their scatter; None if there are none.

    Moves, and not values, because a fall of many times the scatter would leave its shape in any residual; in units of the
    scatter around because curves calm down as they flatten. Outliers are cut to 4 of these units.
    """
    if len(values) < FEWEST:
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
    moves = np.clip(moves / np.maximum(scatter, 0.1 * scatter.mean()), -_WINSOR, _WINSOR)
    return np.asarray(moves - moves.mean(), dtype=np.float64)


def _candidates(n: int, period: float | None) -> IntArray:
    """Indices on the finer grid of frequencies of the fundamentals to look at."""
    slowest, fastest = _FINER * _CYCLES, int(_FINER * n / _SHORTEST)
    if period is None:
        return np.arange(slowest, fastest + 1)
    # Half a frequency to either side: a known period is known, but what repeats with it may drift a little.
    middle = _FINER * n / period
    near = np.arange(math.floor(middle - _FINER / 2), math.ceil(middle + _FINER / 2) + 1)
    return near[(near >= slowest) & (near <= fastest)] if slowest <= middle <= fastest else near[:0]


def _whitened(power: FloatArray, at: FloatArray) -> tuple[FloatArray, float]:
    """The power over that of the smooth spectrum, and from how many independent values this was estimated."""
    own = np.arange(_FINER, len(power), _FINER)
    w = 2 * math.pi * at
    cosines = 2 + (len(own) >= 40) + (len(own) >= 80) + (len(own) >= 160)
    memory = np.log(np.maximum(4 * np.sin(w / 2) ** 2, 1e-12))
    basis = np.stack([np.ones_like(w), memory, *(np.cos(k * w) for k in range(1, cosines + 1))], 1)
    # The logarithm of an exponential variable is on average Euler's constant below that of its mean.
    logs = np.log(np.maximum(power, 1e-300)) + np.euler_gamma
    smooth = basis @ np.linalg.lstsq(basis[own], logs[own], rcond=None)[0]
    # A peak pulls the fit up: what passes the largest that chance brings counts only as much as that.
    most = smooth[own] + math.log(math.log(len(own) / 0.05))
    smooth = basis @ np.linalg.lstsq(basis[own], np.minimum(logs[own], most), rcond=None)[0]
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
