"""Measures the intervals between evaluations, and tests whether they are regular in steps or in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom

from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

MIN_EVALUATION_INTERVALS = 8
"""Minimum number of intervals between evaluations; the first and the last interval are not counted."""
_MAX_SKIP_P_VALUE = 0.001
"""Maximum p-value at which more than half of the events count as missing from a regular grid."""
_MIN_GRID_INTERVAL = 10.0
"""Minimum interval of a regular grid at which longer intervals count as whole multiples with skipped events. Intervals may be
whole multiples of a shorter grid interval by chance."""


@dataclass(frozen=True, slots=True)
class EventIntervals:
    """The intervals between events, without the first and the last interval, which may be irregular."""

    median_interval: float
    """Median interval, in steps or seconds."""
    shortest_interval: float
    longest_interval: float
    off: float
    """Share of the intervals that differ from every whole multiple of the usual interval by more than the tolerance."""
    is_monotonic: bool
    """True if the intervals only grow or only shrink, so that they were probably planned."""
    unequal_share: float = 0.0
    """Share of the intervals that differ from the usual interval by more than the tolerance."""
    events: int = 0
    """Number of intervals if longer ones count as whole multiples of a grid interval, because events were skipped; 0 if no
    event counts as skipped."""
    planned: int = 0
    """Number of intervals that the grid would have if no event had been skipped."""


@dataclass(frozen=True, slots=True)
class EvaluationTiming:
    """The intervals between the evaluations of one trial."""

    trial: Trial
    steps: EventIntervals
    seconds: EventIntervals | None
    """Intervals in seconds; None if the times are unknown."""

    def is_irregular(self, limit: float) -> bool:
        """Return True if more than a share `limit` of the intervals in steps are irregular.

        Intervals that only grow or only shrink count as regular, unless they are regular in seconds.
        """
        return self.steps.off > limit and (self.evaluates_by_clock or not self.steps.is_monotonic)

    @property
    def evaluates_by_clock(self) -> bool:
        """True if the intervals are more regular in seconds than in steps, so the loop evaluates by the clock."""
        return self.seconds is not None and self.seconds.median_interval > 0 and self.seconds.off <= self.steps.off / 2


def read_evaluation_timings(study: Study, tolerance: float) -> list[EvaluationTiming]:
    """Return the timings of the trials with enough evaluations of the objective.

    `tolerance` is the maximum difference of a regular interval from the usual interval, as a share of the usual interval.
    """
    judged_trials = []
    for trial in study.trials:
        curve = study.cost_curve(trial)
        steps = read_event_intervals(curve.steps.astype(np.float64), tolerance, slack=1.0)
        if steps is not None:
            judged_trials.append(EvaluationTiming(trial, steps, read_event_intervals(curve.times, tolerance)))
    events, planned = (sum(getattr(t.steps, count) for t in judged_trials) for count in ("events", "planned"))
    if not _are_events_mostly_missing(planned - events, planned):
        return judged_trials
    # A single trial may have lost half of its evaluations by chance, but it is very unlikely that all trials did.
    return [
        replace(t, steps=_assume_no_skips(t.steps), seconds=None if t.seconds is None else _assume_no_skips(t.seconds))
        for t in judged_trials
    ]


def _assume_no_skips(intervals: EventIntervals) -> EventIntervals:
    """Return the intervals as if no event had been skipped."""
    return replace(intervals, off=intervals.unequal_share, events=0, planned=0) if intervals.planned else intervals


def read_event_intervals(times: FloatArray, tolerance: float, *, slack: float = 0.0) -> EventIntervals | None:
    """Return the intervals between events at increasing `times` (n,), in steps or seconds; None for few or unknown times.

    tolerance: maximum difference of a regular interval from the usual one, as a share of it; slack: an additional absolute
    tolerance in the unit of the times, such as 1 for whole numbers.
    """
    intervals = np.diff(np.asarray(times, dtype=np.float64))[1:-1]
    if len(intervals) < MIN_EVALUATION_INTERVALS or not np.isfinite(intervals).all():
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
        if not _are_events_mostly_missing(on_grid - len(intervals), on_grid):
            irregular = np.abs(intervals - grid * np.round(intervals / grid)) > max(tolerance * grid, slack)
            if np.mean(irregular) < off:
                off, events, planned = float(np.mean(irregular)), len(intervals), on_grid
    differences = np.diff(intervals)
    is_one_way = bool((differences >= -max_difference).all() or (differences <= max_difference).all())
    return EventIntervals(median, shortest, float(intervals.max()), off, is_one_way, unequal, events, planned)


def _are_events_mostly_missing(missing: int, planned: int) -> bool:
    """Return True if significantly more than half of the events on a regular grid are missing, so that the events were not
    planned on this grid.
    """
    return planned > 0 and float(binom.sf(missing - 1, planned, 0.5)) <= _MAX_SKIP_P_VALUE
