from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom

from advisor.engine.rule import Rule, Share
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Name, Number, Percent, say
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial

_MIN_INTERVALS = 8
"""Minimum number of intervals between evaluations; the first and the last interval are not counted."""
_MAX_SKIP_P_VALUE = 0.001
"""Maximum p-value at which more than half of the events count as missing from a regular grid."""
_MIN_GRID_INTERVAL = 10.0
"""Minimum interval of a regular grid at which longer intervals count as whole multiples with skipped events. Intervals may be
whole multiples of a shorter grid interval by chance."""


@dataclass(frozen=True, slots=True)
class EventIntervals:
    """The intervals between events, in steps or seconds, without the first and the last interval, which may be irregular."""

    median: float
    shortest: float
    longest: float
    irregular_share: float
    """Share of the intervals that differ from every whole multiple of the usual interval by more than the tolerance."""
    is_monotonic: bool
    """True if the intervals only grow or only shrink, so that they were probably planned."""
    unequal_share: float
    """Share of the intervals that differ from the usual interval by more than the tolerance."""
    events: int = 0
    """Number of intervals if longer ones count as whole multiples of a grid interval, because events were skipped; else 0."""
    planned: int = 0
    """Number of intervals that the grid would have if no event had been skipped."""

    def without_skips(self) -> EventIntervals:
        return replace(self, irregular_share=self.unequal_share, events=0, planned=0) if self.planned else self


@dataclass(frozen=True, slots=True)
class _EvaluationTiming:
    trial: Trial
    steps: EventIntervals
    seconds: EventIntervals | None

    @property
    def by_clock(self) -> bool:
        seconds = self.seconds
        return seconds is not None and seconds.median > 0 and seconds.irregular_share <= self.steps.irregular_share / 2


class EvalRegular(Rule):
    """Evaluations come at irregular steps, or at regular times instead of regular steps.

    ## What it looks at
    The rule reads the steps between evaluations of the objective in each trial with at least 11 evaluations, without the first
    and the last interval. Two patterns count as regular: intervals that only grow or only shrink, and whole multiples of the
    usual interval (skipped evaluations), unless significantly more than half of all evaluations would have been skipped. If the
    intervals are more regular in seconds than in steps, the rule reports that the clock decides when to evaluate.

    ## Why it matters
    Curves that were evaluated at different steps are hard to compare. If the clock decides when to evaluate, a slower machine
    changes the shape of a curve, and a fast trial has more evaluations and therefore more chances of a lucky evaluation.
    Periodic patterns, a sign of a bug in the data, are visible only if evaluations come at regular steps.

    ## What to do
    Evaluate after a fixed number of optimizer steps, the same number in all trials. With each evaluation, save the predictions
    for a few fixed examples, which show what changes in the model.

    ## How sure
    Confidence is the share of trials with irregular evaluations. The intervals are logged facts, and a loop that counts steps
    evaluates at regular steps at any speed. In simulated trials with 12 to 200 evaluations, the rule never fired on evaluations
    every k steps, at any speed, with up to half of them lost, or after a restart. If the standard deviation of the intervals in
    steps was 20 % or more, the rule always fired. If evaluations followed the clock and the speed of training varied by 20 % or
    more, the rule also always fired.
    """

    playbook = "Setting up periodic evaluations"
    goal = "pipeline"

    tolerance: Share = 0.05
    """Maximum difference of a regular interval from the usual interval, as a share of the usual one. Our choice."""
    off: Share = 0.1
    """Maximum share of irregular intervals in a trial. We chose a share at which one or two interruptions are allowed."""

    def check(self, study: Study) -> Iterator[Finding]:
        timings = _read_evaluation_timings(study, self.tolerance)
        if not timings:
            reason = f"no trial has 11 evaluations of {study.spec.objective.metric}; evaluate more often"
            raise MissingData(reason, needs="evaluations", at_least=11)
        # Intervals that only grow or only shrink count as regular, unless they are regular in seconds.
        irregular = [t for t in timings if t.steps.irregular_share > self.off and (t.by_clock or not t.steps.is_monotonic)]
        if 2 * len(irregular) > len(timings):
            yield self._build_finding(study, irregular, len(timings))

    def _build_finding(self, study: Study, irregular: list[_EvaluationTiming], judged_count: int) -> Finding:
        metric, trials, steps = study.spec.objective.metric, [t.trial for t in irregular], [t.steps for t in irregular]
        by_clock = [t.seconds for t in irregular if t.by_clock and t.seconds is not None]
        is_by_clock = 2 * len(by_clock) > len(irregular)
        usual_steps, off = float(np.median([s.median for s in steps])), _median_irregular_share(steps)
        longest = study.length(round(max(s.longest for s in steps)))
        range_text = say("{low} to {high}", low=round(min(s.shortest for s in steps)), high=longest)
        label = f"intervals that differ from the usual one by more than {Percent(self.tolerance)}, in"
        rows = [
            ("trials with irregular intervals", say("{n} of {judged}", n=len(irregular), judged=judged_count)),
            ("interval between evaluations", range_text),
            (f"{label} steps", say("{off} (limit {limit})", off=off, limit=Percent(self.off))),
        ]
        if is_by_clock:
            seconds = Number(float(np.median([s.median for s in by_clock])), unit="s")
            predicate = say("by the clock, every {seconds}. The intervals range from {gaps}.", seconds=seconds, gaps=range_text)
            rows.append((f"{label} seconds", say("{off}", off=_median_irregular_share(by_clock))))
        else:
            text = (
                "at irregular {unit}s. {off} of the intervals differ from the usual {usual} by more than {tolerance}; they range "
                "from {gaps}."
            )
            usual = study.length(round(usual_steps))
            predicate = say(text, unit=study.unit, off=off, usual=usual, tolerance=Percent(self.tolerance), gaps=range_text)
        caption = say("The intervals between evaluations of {metric} range from {gaps}.", metric=Name(metric), gaps=range_text)
        text = "In {n} of {judged} trials, {metric} is evaluated {how}"
        interval = f"Evaluate every {study.length(max(round(usual_steps), 1))} in all trials"
        return self.finding(
            say(text, n=len(irregular), judged=judged_count, metric=Name(metric), how=predicate),
            action=f"{interval}, not by the clock." if is_by_clock else f"{interval}.",
            severity="warning" if is_by_clock else "note",
            confidence=len(irregular) / judged_count,
            subject=metric,
            trials=trials,
            evidence=(curve_plot(metric, caption, trials[:5]), table(*rows)),
        )


def _median_irregular_share(intervals: Sequence[EventIntervals]) -> Percent:
    return Percent(float(np.median([r.irregular_share for r in intervals])))


def _read_evaluation_timings(study: Study, tolerance: float) -> list[_EvaluationTiming]:
    timings = []
    for trial in study.trials:
        curve = study.cost_curve(trial)
        steps = read_event_intervals(curve.steps.astype(np.float64), tolerance, slack=1.0)
        if steps is not None:
            timings.append(_EvaluationTiming(trial, steps, read_event_intervals(curve.times, tolerance)))
    events, planned = sum(t.steps.events for t in timings), sum(t.steps.planned for t in timings)
    if not _are_events_mostly_missing(planned - events, planned):
        return timings
    # A single trial may have lost half of its evaluations by chance, but it is very unlikely that all trials did.
    return [replace(t, steps=t.steps.without_skips(), seconds=t.seconds and t.seconds.without_skips()) for t in timings]


def read_event_intervals(times: FloatArray, tolerance: float, *, slack: float = 0.0) -> EventIntervals | None:
    """Return the intervals between events at increasing `times` (n,), in steps or seconds; None for few or unknown times.

    tolerance: maximum difference of a regular interval from the usual one, as a share of it; slack: an additional absolute
    tolerance in the unit of the times, such as 1 for whole numbers.
    """
    intervals = np.diff(np.asarray(times, dtype=np.float64))[1:-1]
    if len(intervals) < _MIN_INTERVALS or not np.isfinite(intervals).all():
        return None
    median, shortest = float(np.median(intervals)), float(intervals.min())
    max_difference = max(tolerance * median, slack)
    unequal = off = float(np.mean(np.abs(intervals - median) > max_difference))
    events = planned = 0
    # Skipped events make intervals whole multiples of the usual interval or, if many are skipped, of the shortest interval.
    for grid in (median, shortest):
        if grid < _MIN_GRID_INTERVAL * max(slack, 1.0):
            continue
        grid_count = round(float(intervals.sum()) / grid)
        if not _are_events_mostly_missing(grid_count - len(intervals), grid_count):
            irregular = np.abs(intervals - grid * np.round(intervals / grid)) > max(tolerance * grid, slack)
            if np.mean(irregular) < off:
                off, events, planned = float(np.mean(irregular)), len(intervals), grid_count
    differences = np.diff(intervals)
    is_monotonic = bool((differences >= -max_difference).all() or (differences <= max_difference).all())
    return EventIntervals(median, shortest, float(intervals.max()), off, is_monotonic, unequal, events, planned)


def _are_events_mostly_missing(missing: int, planned: int) -> bool:
    return planned > 0 and float(binom.sf(missing - 1, planned, 0.5)) <= _MAX_SKIP_P_VALUE
