"""The intervals between evaluations: regular in steps, regular in seconds, or neither."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

MIN_INTERVALS = 8
"""Minimum number of intervals, without the first and the last."""
_MIN_GRID = 10.0
"""Minimum interval whose whole multiples count as skipped events; shorter ones have them by chance."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The intervals between events, without the first and the last one, which a start or an end may disturb."""

    usual: float
    """Median interval."""
    shortest: float
    longest: float
    off: float
    """Share of intervals that differ from the usual one, or its whole multiples, by more than the tolerance."""
    one_way: bool
    """Whether the intervals only grow or only shrink: they follow a plan."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The intervals between the evaluations of one trial."""

    trial: Trial
    steps: Rhythm
    seconds: Rhythm | None
    """None if the times are unknown."""

    def irregular(self, limit: float) -> bool:
        """Whether more than a share `limit` of the intervals are off, in steps.

        Intervals that only grow or only shrink follow a plan, unless they follow the clock.
        """
        return self.steps.off > limit and (self.by_clock or not self.steps.one_way)

    @property
    def by_clock(self) -> bool:
        """Whether the intervals are more regular in seconds than in steps, which only a loop that watches the clock produces."""
        return self.seconds is not None and self.seconds.usual > 0 and self.seconds.off <= self.steps.off / 2


def timings(study: Study, tolerance: float) -> list[Timing]:
    """The timings of the trials with enough evaluations of the objective.

    tolerance: maximum difference from the usual interval, as a share of it, that still counts as regular.
    """
    judged = []
    for trial in study.trials:
        curve = study.cost_curve(trial)
        steps = rhythm(curve.steps.astype(np.float64), tolerance, slack=1.0)
        if steps is not None:
            judged.append(Timing(trial, steps, rhythm(curve.times, tolerance)))
    return judged


def rhythm(times: FloatArray, tolerance: float, *, slack: float = 0.0) -> Rhythm | None:
    """The intervals between events at increasing `times` (n,), in steps or seconds; None for too few events or unknown times.

    tolerance: maximum difference from the usual interval, as a share of it; slack: the same in the unit of the times, such as 1 for
    whole numbers.
    """
    gaps = np.diff(np.asarray(times, dtype=np.float64))[1:-1]
    if len(gaps) < MIN_INTERVALS or not np.isfinite(gaps).all():
        return None
    usual, shortest = float(np.median(gaps)), float(gaps.min())
    width = max(tolerance * usual, slack)
    off = float(np.mean(np.abs(gaps - usual) > width))
    # Skipped events make whole multiples of an interval: of the usual one or, if most are skipped, of the shortest.
    for grid in (usual, shortest):
        if grid >= _MIN_GRID * max(slack, 1.0):
            missed = np.abs(gaps - grid * np.round(gaps / grid)) > max(tolerance * grid, slack)
            off = min(off, float(np.mean(missed)))
    turns = np.diff(gaps)
    one_way = bool((turns >= -width).all() or (turns <= width).all())
    return Rhythm(usual, shortest, float(gaps.max()), off, one_way)
