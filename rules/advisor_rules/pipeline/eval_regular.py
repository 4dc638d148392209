"""The rule `eval-regular`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.engine.rule import Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor_rules.pipeline._evaluation_gaps import Timing, timings


class EvalRegular(Rule):
    """Evaluations come at irregular steps, or by the clock.

    ## What it looks at
    The steps between two evaluations of the objective, in each trial with 11 evaluations or more; the first and the last interval
    are left out. Intervals that grow or shrink all along, and whole multiples of the usual one (evaluations that were left out),
    follow a plan and are fine. Where the seconds between evaluations are the more regular, the clock decided when to evaluate.

    ## Why it matters
    Curves of trials that were evaluated at different steps are hard to compare, a slower machine changes what they look like, and
    a fast trial has more evaluations to be lucky in. Periodic patterns, a sign of a bug in the data, only show at regular steps.

    ## What to do
    Evaluate every so many optimizer steps, the same number in all trials.

    ## How sure
    What was logged is counted, not estimated: a loop that counts steps evaluates at regular ones, however its speed varies, so
    there is nothing for chance to imitate. Measured on simulated trials with 12 to 200 evaluations: never fired on evaluations
    every k steps, with any speed, with up to half of them lost, or after a restart; fired on all with intervals that vary by 20 %
    (standard deviation) or more, in steps, or in speed for evaluations by the clock. Confidence is the share of the trials that
    show it.

    Example: "In 6 of 6 trials, val/error is evaluated at irregular steps: 84% of the intervals differ by more than 5% from the
    usual 15 steps, and they range from 2 to 71."
    """

    playbook: ClassVar[str] = "Setting up periodic evaluations"
    goal: ClassVar[Goal] = "pipeline"

    tolerance: Share = 0.05
    """Difference from the usual interval that does no harm, as a share of it. Our choice."""
    off: Share = 0.1
    """Share of a trial's intervals that may be off. Ours: a run that was interrupted once or twice stays below it."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding, where most trials show it."""
        judged = timings(study, self.tolerance)
        if not judged:
            raise MissingData(
                f"no trial has 11 evaluations of {study.spec.objective.metric} or more; evaluate more often to see a rhythm"
            )
        irregular = [t for t in judged if t.irregular(self.off)]
        if 2 * len(irregular) > len(judged):
            yield self._report(study, irregular, len(judged))

    def _report(self, study: Study, irregular: list[Timing], judged: int) -> Finding:
        metric = study.spec.objective.metric
        by_clock = [t for t in irregular if t.by_clock and t.seconds is not None]
        clock = 2 * len(by_clock) > len(irregular)
        usual = float(np.median([t.steps.usual for t in irregular]))
        shortest, longest = min(t.steps.shortest for t in irregular), max(t.steps.longest for t in irregular)
        off = float(np.median([t.steps.off for t in irregular]))
        message = f"In {len(irregular)} of {judged} trials, {metric} is evaluated "
        rows = [
            ("trials with irregular intervals", f"{len(irregular)} of {judged} that have 11 evaluations or more"),
            (f"{study.unit}s between evaluations", f"{shortest:,.0f} to {longest:,.0f}, median {usual:,.0f}"),
            (f"intervals off by more than {self.tolerance:.0%} of the usual steps", f"{off:.0%} (fires above {self.off:.0%})"),
        ]  # fmt: skip
        if clock:
            seconds = float(np.median([t.seconds.usual for t in by_clock if t.seconds is not None]))
            late = float(np.median([t.seconds.off for t in by_clock if t.seconds is not None]))
            message += f"by the clock, every {seconds:.3g} s: from one to the next it is "
            message += f"{shortest:,.0f} to {longest:,.0f} {study.unit}s."
            rows.append((f"intervals off by more than {self.tolerance:.0%} of the usual seconds", f"{late:.0%}"))
        else:
            message += (
                f"at irregular {study.unit}s: {off:.0%} of the intervals differ by more than {self.tolerance:.0%} from the usual "
                f"{usual:,.0f} {study.unit}s, and they range from {shortest:,.0f} to {longest:,.0f}."
            )
        advice = (
            f"Evaluate every {study.length(max(round(usual), 1))} in all trials{', not by the clock' if clock else ''}."
        )
        trials = [t.trial for t in irregular]
        return self.finding(
            message,
            action=advice,
            severity="warning" if clock else "note",
            confidence=len(irregular) / judged,
            subject=metric,
            trials=trials,
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"The points of {metric} lie {shortest:,.0f} to {longest:,.0f} {study.unit}s apart.",
                    trials=tuple(t.id for t in trials[:5]),
                ),
                FigureEvidence(rows=tuple(rows)),
            ),
            changes=(Advise(text=advice),),
        )
