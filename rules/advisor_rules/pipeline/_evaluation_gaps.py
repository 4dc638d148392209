"""Measures the intervals between evaluations, and tests whether they are regular in steps or in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom

from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

MIN_INTERVALS = 8
"""Minimum number of intervals between evaluations; the first and the last interval are not counted."""
_MAX_P_SKIPPED = 0.001
"""Maximum p-value at which more than half of the events count as missing from a regular grid."""
_MIN_GRID_INTERVAL = 10.0
"""Minimum interval of a regular grid at which longer intervals count as whole multiples with skipped events. Intervals are
whole multiples of a shorter grid interval by chance."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """The intervals between events, without the first and the last interval, which may be irregular."""

    usual: float
    """Median interval, in steps or seconds."""
    shortest: float
    longest: float
    off: float
    """Share of the intervals that differ from every whole multiple of the usual interval by more than the tolerance."""
    is_one_way: bool
    """True if the intervals only grow or only shrink, so that they were probably planned."""
    unequal: float = 0.0
    """Share of the intervals that differ from the usual interval by more than the tolerance."""
    events: int = 0
    """Number of intervals on a regular grid; 0 if the intervals form no such grid."""
    planned: int = 0
    """Number of intervals that the grid would have if no event had been skipped."""


@dataclass(frozen=True, slots=True)
class EvaluationTiming:
    """The intervals between the evaluations of one trial."""

    trial: Trial
    steps: Intervals
    seconds: Intervals | None
    """Intervals in seconds; None if the times are unknown."""

    def irregular(self, limit: float) -> bool:
        """Return True if more than a share `limit` of the intervals in steps are irregular.

        Intervals that only grow or only shrink count as regular, unless they are regular in seconds.
        """
        return self.steps.off > limit and (self.by_clock or not self.steps.is_one_way)

    @property
    def by_clock(self) -> bool:
        """True if the intervals are more regular in seconds than in steps, so the loop evaluates by the clock."""
        return self.seconds is not None and self.seconds.usual > 0 and self.seconds.off <= self.steps.off / 2


def read_timings(study: Study, tolerance: float) -> list[EvaluationTiming]:
    """Return the timings of the trials with enough evaluations of the objective.

    `tolerance` is the maximum difference of a regular interval from the usual interval, as a share of the usual interval.
    """
    judged_trials = []
    for trial in study.trials:
        curve = study.cost_curve(trial)
        steps = read_intervals(curve.steps.astype(np.float64), tolerance, slack=1.0)
        if steps is not None:
            judged_trials.append(EvaluationTiming(trial, steps, read_intervals(curve.times, tolerance)))
    events, planned = (sum(getattr(t.steps, count) for t in judged_trials) for count in ("events", "planned"))
    if not _are_mostly_missing(planned - events, planned):
        return judged_trials
    # A single trial may have lost half of its evaluations by chance, but it is very unlikely that all trials did.
    return [
        replace(
            t,
            steps=_count_without_skips(t.steps),
            seconds=None if t.seconds is None else _count_without_skips(t.seconds),
        )
        for t in judged_trials
    ]


def _count_without_skips(intervals: Intervals) -> Intervals:
    """Return the intervals as if no event had been skipped."""
    return replace(intervals, off=intervals.unequal, events=0, planned=0) if intervals.planned else intervals


def read_intervals(times: FloatArray, tolerance: float, *, slack: float = 0.0) -> Intervals | None:
    """Return the intervals between events at increasing `times` (n,), in steps or seconds; None for few or unknown times.

    tolerance: maximum difference of a regular interval from the usual one, as a share of it; slack: an additional absolute
    tolerance in the unit of the times, such as 1 for whole numbers.
    """
    intervals = np.diff(np.asarray(times, dtype=np.float64))[1:-1]
    if len(intervals) < MIN_INTERVALS or not np.isfinite(intervals).all():
        return None
    median, shortest = float(np.median(intervals)), float(intervals.min())
    max_difference = max(tolerance * median, slack)
    unequal = off = float(np.mean(np.abs(intervals - median) > max_difference))
    events = planned = 0
    # Skipped events make intervals whole multiples of the usual interval or, if many events are skipped, of the shortest
    # interval.
    for grid in (median, shortest):
        if grid < _MIN_GRID_INTERVAL * max(slack, 1.0):
            continue
        on_grid = round(float(intervals.sum()) / grid)
        if not _are_mostly_missing(on_grid - len(intervals), on_grid):
            irregular = np.abs(intervals - grid * np.round(intervals / grid)) > max(tolerance * grid, slack)
            if np.mean(irregular) < off:
                off, events, planned = float(np.mean(irregular)), len(intervals), on_grid
    differences = np.diff(intervals)
    is_one_way = bool((differences >= -max_difference).all() or (differences <= max_difference).all())
    return Intervals(median, shortest, float(intervals.max()), off, is_one_way, unequal, events, planned)


def _are_mostly_missing(missing: int, planned: int) -> bool:
    """Return True if significantly more than half of the events on a regular grid are missing, so that the events were not
    planned on this grid.
    """
    return planned > 0 and float(binom.sf(missing - 1, planned, 0.5)) <= _MAX_P_SKIPPED
