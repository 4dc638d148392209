"""Share of the ranking of trials that is due to noise between evaluations around their best steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import FloatArray
from advisor.stats.curve import HUGE, noise, smoothed

MIN_EVALUATIONS = 10
"""Minimum number of evaluations for measuring the noise around the best evaluation."""
_DRAWS = 500
_MIN_AROUND = 8
_COURSE = 9
"""Number of points in the window of a local parabola."""


@dataclass(frozen=True, slots=True)
class Around:
    """Half of a curve, around its best point, split into a smooth course and noise."""

    start: int
    """Index, in the whole curve, of the first point of this half."""
    course: FloatArray
    """Smooth course from local parabolas, shape (m,)."""
    rest: FloatArray
    """Points minus their smooth course, shape (m,)."""
    noise: float
    """Standard deviation of the noise from one evaluation to the next."""

    def chance_above(self, level: float) -> float:
        """Return the probability that the true noise exceeds `level`; the log of the estimate has standard error 1.5 / sqrt(m)."""
        if self.noise <= 0 or level <= 0 or math.isinf(level):
            return float(self.noise > level)
        return float(stats.norm.cdf(math.log(self.noise / level) * math.sqrt(len(self.course)) / 1.5))


def around_best(costs: FloatArray) -> Around | None:
    """Split the half of a curve of finite costs (n,) around its lowest point; None for fewer than 10 points."""
    n = len(costs)
    if n < MIN_EVALUATIONS:
        return None
    y = np.clip(costs, -HUGE, HUGE)
    size = min(n, max(n // 2, _MIN_AROUND))
    start = min(max(int(np.argmin(y)) - size // 2, 0), n - size)
    part = y[start : start + size]
    # Remove single jumps before fitting parabolas, because jumps would bend the fit.
    calm = median_filter(part, size=3, mode="nearest")
    course = smoothed(calm, min(_COURSE, size - 1 + size % 2))
    scatter = _noise(part)
    # Without noise, the smooth course is the curve itself.
    return Around(start, course if scatter > 0 else part, part - course if scatter > 0 else np.zeros(size), scatter)


def _noise(part: FloatArray) -> float:
    """Return `curve.noise`, or less if bends of the curve look like noise; 0 if the curve never rises.

    White noise with variance sigma^2 gives third differences of variance 20 sigma^2, and successive second differences of
    covariance -4 sigma^2. In a bend, successive second differences have the same sign.
    """
    if (np.diff(part) <= 0).all():
        return 0.0
    second = part[:-2] - 2 * part[1:-1] + part[2:]
    third = float(np.median(np.abs(np.diff(second)))) / 0.6745 / math.sqrt(20)
    alternating = max(0.0, -float(np.mean(second[1:] * second[:-1])) / 4)
    return min(noise(part), third, math.sqrt(alternating))


@dataclass(frozen=True, slots=True)
class Ranking:
    """Stability of a ranking of trials when their evaluations are drawn again."""

    keeps: float
    """Share of the draws in which the best trial remains the best."""
    reliability: float
    """Share of the variance of the trials' best costs that is not due to noise, from 0 to 1."""
    noise: float
    """Median over the trials of the standard deviation of a single evaluation's noise."""
    spread: float
    """Standard deviation of one trial's best cost over the draws; root mean square over the trials."""


def redraw_ranking(trials: Sequence[Around], *, seed: int = 0) -> Ranking:
    """Draw the evaluations of two or more trials, best first, 500 times from their smooth courses and noise."""
    rng = np.random.default_rng(seed)
    best = np.stack(
        [(t.course + t.noise * rng.standard_normal((_DRAWS, len(t.course)))).min(axis=1) for t in trials], axis=1
    )
    reported = np.array([float((t.course + t.rest).min()) for t in trials])
    by_noise = float(np.mean(best.var(axis=0)))
    total = float(reported.var(ddof=1))
    return Ranking(
        keeps=float(np.mean(best.argmin(axis=1) == 0)),
        reliability=max(0.0, 1 - by_noise / total) if total > 0 else 0.0 if by_noise > 0 else 1.0,
        noise=float(np.median([t.noise for t in trials])),
        spread=math.sqrt(by_noise),
    )
