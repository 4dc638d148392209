"""Measures how far noise between the evaluations around each trial's best step determines the ranking of the trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.ndimage import median_filter

from advisor.model.space import MAX_FINITE_VALUE, FloatArray
from advisor.stats.curve import noise, smooth_savgol

MIN_EVALUATIONS_FOR_NOISE = 10
"""Minimum number of evaluations to measure the noise around the best evaluation."""
_SEED = 0
_NUMBER_OF_REDRAWS = 500
"""Number of simulated draws of the evaluations of all trials."""
_MIN_POINTS_AROUND_BEST = 8
"""Minimum number of points around a curve's best point in which noise is measured."""
_MIN_POINTS_AT_END = 3
"""Minimum number of last points of a curve in which noise is measured."""
_MAX_PARABOLA_WINDOW = 9
"""Maximum number of points to which a local parabola is fitted."""


@dataclass(frozen=True, slots=True)
class HalfAroundBest:
    """The half of a curve around its best point, split into a smooth curve and noise."""

    first_index: int
    """Index, in the whole curve, of the first point of this half."""
    smooth_curve: FloatArray
    """Smooth curve of local parabolas through the points, shape (m,)."""
    residuals: FloatArray
    """Differences between the points and the smooth curve, shape (m,)."""
    noise_sd: float
    """Standard deviation of the noise of one evaluation."""

    def chance_noise_exceeds(self, level: float) -> float:
        """Return the probability that the true noise exceeds `level`. The logarithm of the estimated noise has a standard error
        of 1.5 / sqrt(m)."""
        if self.noise_sd <= 0 or level <= 0 or math.isinf(level):
            return float(self.noise_sd > level)
        return float(stats.norm.cdf(math.log(self.noise_sd / level) * math.sqrt(len(self.smooth_curve)) / 1.5))


def split_around_best(costs: FloatArray) -> HalfAroundBest | None:
    """Split the half of a cost curve around its lowest point into a smooth curve and noise. costs: shape (n,), finite; None for
    fewer than 10 points."""
    n = len(costs)
    if n < MIN_EVALUATIONS_FOR_NOISE:
        return None
    y = np.clip(costs, -MAX_FINITE_VALUE, MAX_FINITE_VALUE)
    size = min(n, max(n // 2, _MIN_POINTS_AROUND_BEST))
    start = min(max(int(np.argmin(y)) - size // 2, 0), n - size)
    part = y[start : start + size]
    # Single jumps would bend the fitted parabolas, so remove them first.
    without_jumps = median_filter(part, size=3, mode="nearest")
    course = smooth_savgol(without_jumps, min(_MAX_PARABOLA_WINDOW, size - 1 + size % 2))
    deviation = _noise_sd(part)
    # A curve without noise is its own smooth curve.
    return HalfAroundBest(
        start, course if deviation > 0 else part, part - course if deviation > 0 else np.zeros(size), deviation
    )


def split_ends(curves: Sequence[FloatArray], lengths: Sequence[int]) -> list[HalfAroundBest] | None:
    """Split the last points of cost curves into straight lines and noise, whose variance is averaged over the curves.

    lengths: number of last points of each curve. Return None if a length is below 3, or if a curve is better before its last
    points by more than noise.
    """
    if min(lengths) < _MIN_POINTS_AT_END:
        return None
    ends = [np.clip(c[-m:], -MAX_FINITE_VALUE, MAX_FINITE_VALUE) for c, m in zip(curves, lengths, strict=True)]
    lines = [np.asarray(np.polyval(np.polyfit(x := np.arange(len(y)), y, 1), x), dtype=np.float64) for y in ends]
    residuals = [y - line for y, line in zip(ends, lines, strict=True)]
    deviation = math.sqrt(np.mean([float(r @ r) / (len(r) - 2) for r in residuals]))
    for curve, end in zip(curves, ends, strict=True):
        part = split_around_best(curve)
        if part is None or end.min() > curve.min() + 2 * math.sqrt(2) * part.noise_sd:
            return None
    return [HalfAroundBest(len(c) - len(r), y, r, deviation) for c, y, r in zip(curves, lines, residuals, strict=True)]


def _noise_sd(part: FloatArray) -> float:
    """Return the standard deviation of the noise; 0 if the curve never rises. It is at most `curve.noise`, which bends of the
    curve inflate.

    White noise with variance sigma^2 has third differences of variance 20 sigma^2, and successive second differences of
    covariance -4 sigma^2. In a bend of the curve, successive second differences have the same sign.
    """
    if (np.diff(part) <= 0).all():
        return 0.0
    second_differences = part[:-2] - 2 * part[1:-1] + part[2:]
    noise_of_third = float(np.median(np.abs(np.diff(second_differences)))) / 0.6745 / math.sqrt(20)
    alternating = max(0.0, -float(np.mean(second_differences[1:] * second_differences[:-1])) / 4)
    return min(noise(part), noise_of_third, math.sqrt(alternating))


@dataclass(frozen=True, slots=True)
class Ranking:
    """Stability of a ranking of trials when the noise of their evaluations is drawn again."""

    best_unchanged_share: float
    """Share of the draws in which the best trial remains the best one."""
    reliability: float
    """Share of the variance between the trials' best costs that is not due to noise, from 0 to 1."""
    noise_sd: float
    """Standard deviation of the noise of one evaluation, as the median over the trials."""
    best_cost_sd: float
    """Standard deviation of one trial's best cost over the draws, as the root mean square over the trials."""


def redraw_ranking(trials: Sequence[HalfAroundBest]) -> Ranking:
    """Draw the evaluations of two or more trials 500 times, as smooth curve plus noise, and find the best trial of each draw."""
    rng = np.random.default_rng(_SEED)
    best = np.stack(
        [
            (t.smooth_curve + t.noise_sd * rng.standard_normal((_NUMBER_OF_REDRAWS, len(t.smooth_curve)))).min(axis=1)
            for t in trials
        ],
        axis=1,
    )
    best_costs = np.array([float((t.smooth_curve + t.residuals).min()) for t in trials])
    noise_variance = float(np.mean(best.var(axis=0)))
    total = float(best_costs.var(ddof=1))
    return Ranking(
        # Smoothing may lower another trial below the first one, but the first trial is still at least as likely to be the best
        # as any other.
        best_unchanged_share=max(float(np.mean(best.argmin(axis=1) == 0)), 1 / len(trials)),
        reliability=max(0.0, 1 - noise_variance / total) if total > 0 else 0.0 if noise_variance > 0 else 1.0,
        noise_sd=float(np.median([t.noise_sd for t in trials])),
        best_cost_sd=math.sqrt(noise_variance),
    )
