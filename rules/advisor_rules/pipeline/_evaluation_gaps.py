"""The intervals between evaluations: regular in steps, regular in seconds, or neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

MIN_INTERVALS = 8
"""Minimum number of intervals, not counting the first and the last."""
_MOSTLY = 0.001
"""Maximum p-value at which most events count as missing, if half of them were skipped at random."""
_MIN_GRID = 10.0
"""Minimum interval whose whole multiples count as skipped events; shorter intervals have them by chance."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The intervals between events, without the first and the last, because a start or an end may disturb them."""

    usual: float
    """Median interval, in steps or seconds."""
    shortest: float
    longest: float
    off: float
    """Share of the intervals that differ from the usual interval, or a whole multiple of it, by more than the tolerance."""
    one_way: bool
    """True if the intervals only grow or only shrink, and so follow a plan."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The intervals between the evaluations of one trial."""

    trial: Trial
    steps: Rhythm
    seconds: Rhythm | None
    """Intervals in seconds; None if the times are unknown."""

    def irregular(self, limit: float) -> bool:
        """Return True if more than a share `limit` of the intervals in steps are irregular.

        Intervals that only grow or only shrink follow a plan, unless they follow the clock.
        """
        return self.steps.off > limit and (self.by_clock or not self.steps.one_way)

    @property
    def by_clock(self) -> bool:
        """Return True if the intervals are more regular in seconds than in steps, which shows that the loop watches the clock."""
        return self.seconds is not None and self.seconds.usual > 0 and self.seconds.off <= self.steps.off / 2


def timings(study: Study, tolerance: float) -> list[Timing]:
    """Return the timings of the trials with enough evaluations of the objective.

    tolerance: maximum difference of a regular interval from the usual interval, as a share of the usual one.
    """
    judged = []
    for trial in study.trials:
        curve = study.cost_curve(trial)
        steps = rhythm(curve.steps.astype(np.float64), tolerance, slack=1.0)
        if steps is not None:
            judged.append(Timing(trial, steps, rhythm(curve.times, tolerance)))
    return judged


def rhythm(times: FloatArray, tolerance: float, *, slack: float = 0.0) -> Rhythm | None:
    """Return the intervals between events at increasing `times` (n,), in steps or seconds; None with few or unknown times.

    tolerance: maximum difference of a regular interval from the usual one, as a share of it; slack: an additional absolute
    tolerance in the unit of the times, such as 1 for whole numbers.
    """
    gaps = np.diff(np.asarray(times, dtype=np.float64))[1:-1]
    if len(gaps) < MIN_INTERVALS or not np.isfinite(gaps).all():
        return None
    usual, shortest = float(np.median(gaps)), float(gaps.min())
    width = max(tolerance * usual, slack)
    off = float(np.mean(np.abs(gaps - usual) > width))
    # Skipped events make intervals whole multiples of the usual interval or, if many events are skipped, of the shortest.
    for grid in (usual, shortest):
        if grid >= _MIN_GRID * max(slack, 1.0) and not _mostly_skipped(gaps, grid):
            missed = np.abs(gaps - grid * np.round(gaps / grid)) > max(tolerance * grid, slack)
            off = min(off, float(np.mean(missed)))
    turns = np.diff(gaps)
    one_way = bool((turns >= -width).all() or (turns <= width).all())
    return Rhythm(usual, shortest, float(gaps.max()), off, one_way)


def _mostly_skipped(gaps: FloatArray, grid: float) -> bool:
    """Return True if significantly more than half of the events on this grid are missing, so that the grid was not planned."""
    planned = round(float(gaps.sum()) / grid)
    return float(binom.sf(planned - len(gaps) - 1, planned, 0.5)) <= _MOSTLY
