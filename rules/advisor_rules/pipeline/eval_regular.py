"""Implements the rule `eval-regular`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from advisor.engine.rule import Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, MessagePart, Name, Number, Percent, say, value_with_limit
from advisor.model.study import Study
from advisor_rules.pipeline._evaluation_gaps import EvaluationTiming, EventIntervals, read_evaluation_timings


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
        judged_trials = read_evaluation_timings(study, self.tolerance)
        if not judged_trials:
            raise MissingData(
                f"no trial has 11 evaluations of {study.spec.objective.metric}; evaluate more often",
                needs="evaluations",
                at_least=11,
            )
        irregular = [t for t in judged_trials if t.is_irregular(self.off)]
        if 2 * len(irregular) > len(judged_trials):
            yield self._build_finding(study, irregular, len(judged_trials))

    def _build_finding(self, study: Study, irregular: list[EvaluationTiming], judged_count: int) -> Finding:
        metric = study.spec.objective.metric
        by_clock = [t.seconds for t in irregular if t.evaluates_by_clock and t.seconds is not None]
        clock = 2 * len(by_clock) > len(irregular)
        usual_interval = float(np.median([t.steps.median_interval for t in irregular]))
        interval = f"Evaluate every {study.length(max(round(usual_interval), 1))} in all trials"
        advice = f"{interval}, not by the clock." if clock else f"{interval}."
        trials = [t.trial for t in irregular]
        gaps = _interval_range_text(study, irregular)
        return self.finding(
            say(
                "In {n} of {judged} trials, {metric} is evaluated {how}",
                n=len(irregular),
                judged=judged_count,
                metric=Name(metric),
                how=_clock_phrase(by_clock, gaps)
                if clock
                else self._irregularity_phrase(study, irregular, usual_interval, gaps),
            ),
            action=advice,
            severity="warning" if clock else "note",
            confidence=len(irregular) / judged_count,
            subject=metric,
            trials=trials,
            evidence=(
                curve_plot(
                    metric, say("Evaluations of {metric} lie {gaps} apart.", metric=Name(metric), gaps=gaps), trials[:5]
                ),
                self._figure_evidence(irregular, judged_count, by_clock if clock else [], gaps),
            ),
            changes=(Advise(text=advice),),
        )

    def _irregularity_phrase(
        self, study: Study, irregular: list[EvaluationTiming], usual_interval: float, gaps: Message
    ) -> Message:
        return say(
            "at irregular {unit}s. {off} of the intervals differ from the usual {usual} by more than {tolerance}; they range from "
            "{gaps}.",
            unit=study.unit,
            off=_median_irregular_share([t.steps for t in irregular]),
            usual=study.length(round(usual_interval)),
            tolerance=Percent(self.tolerance),
            gaps=gaps,
        )

    def _figure_evidence(
        self, irregular: list[EvaluationTiming], judged_count: int, by_clock: list[EventIntervals], gaps: Message
    ) -> FigureEvidence:
        off = value_with_limit(_median_irregular_share([t.steps for t in irregular]), Percent(self.off))
        rows: list[tuple[str, MessagePart]] = [
            ("trials with irregular intervals", say("{n} of {judged}", n=len(irregular), judged=judged_count)),
            ("interval between evaluations", gaps),
            (f"intervals that differ from the usual one by more than {Percent(self.tolerance)}, in steps", off),
        ]
        if by_clock:
            rows.append(
                (
                    f"intervals that differ from the usual one by more than {Percent(self.tolerance)}, in seconds",
                    _median_irregular_share(by_clock),
                )
            )
        return table(*rows)


def _interval_range_text(study: Study, irregular: list[EvaluationTiming]) -> Message:
    shortest, longest = (min(t.steps.shortest_interval for t in irregular), max(t.steps.longest_interval for t in irregular))
    return say("{low} to {high}", low=round(shortest), high=study.length(round(longest)))


def _median_irregular_share(intervals: list[EventIntervals]) -> Percent:
    return Percent(float(np.median([r.off for r in intervals])))


def _clock_phrase(intervals: list[EventIntervals], gaps: Message) -> Message:
    seconds = Number(float(np.median([r.median_interval for r in intervals])), unit="s")
    return say("by the clock, every {seconds}. The intervals range from {gaps}.", seconds=seconds, gaps=gaps)
