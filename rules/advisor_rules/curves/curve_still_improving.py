"""The rule `curve-still-improving`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.curves.curve_tails import Ending
from advisor.engine.rule import Count, Expectation, Relation, Rule, Share
from advisor.model.change import Advise, SetField
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal
from advisor.model.message import Message, Number, Percent, Probability, listed, say
from advisor.model.study import Study

_STRETCH = (
    "Spend the extra steps at a high learning rate: stretch a cosine decay over the new length; keep a linear decay as long as it "
    "was and put the extra steps before it."
)


class CurveStillImproving(Rule):
    """The best trials still improve when their training ends.

    ## What it looks at
    The objective of the best few trials over the last fifth of their steps. Does it improve beyond its noise? A line through these
    evaluations (with wider errors for autocorrelated noise) and a sign test of their differences both decide. The forecast is the
    gain from doubling the training; it follows from the slope and from its decrease since the fifth before. The rule fires if most
    of the best trials improve and the forecast is large enough. Trials that were cut short are left out.

    ## Why it matters
    Compute limits this study: longer training improves its results directly. Comparing trials too early may rank them wrongly.

    ## What to do
    Train longer, by a factor of 1.5 to 3 that follows from the curves. Stretch the learning-rate schedule too, because extra steps
    at the tiny final rate of the old schedule are wasted. With a cosine decay, use the new length and the same base rate. With a
    linear decay, keep its length and extend the constant part before it. Then tune the decay again.

    ## How sure
    Confidence is the probability, from the noise, that the forecast exceeds the threshold, times the share of the best trials that
    agree. The forecast extrapolates the end of the curve, so it is rough for schedules that decay to zero. In 400 simulated studies
    per design of flat curves with 10 to 50 evaluations, the rule fired in at most 1.3 % with white noise, 3 % with a lag-1
    autocorrelation of 0.5, and 3 to 5 % with one of 0.8 or 0.9.
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "steps"
    predicts: ClassVar[Expectation] = "longer-reaches"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("steps-compute-bound",),
            shares="trials",
            because="Curves that still fall at their end show that compute limits the study.",
            waits=False,
        ),
        Relation(
            rules=(
                "step-position",
                "tuning-saturated",
            ),
            shares="study",
            because="The training is too short: its trials end while they still improve.",
        ),
        Relation(
            rules=("space-undersampled",),
            shares="study",
            because="The trials end while they still improve, so the best one may only be the fastest.",
        ),
    )

    best: Count = curve_tails.BEST
    """Number of best trials to judge. The playbook asks for at least the best few."""
    reach: Share = curve_tails.REACH
    """Maximum distance of a judged trial from the best trial, as a share of the best trial's gain over its run. Our choice."""
    tail: Share = curve_tails.TAIL
    """Share of the steps that counts as the end of training; extended if it holds fewer than 5 evaluations. Our choice."""
    material: Share = curve_tails.MATERIAL
    """Minimum forecast gain, as a share of the run's gain. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding: the level of each trial's test; most trials must pass."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding, about the study."""
        judged = curve_tails.best_endings(study, self.best, self.reach, tail=self.tail)
        improving = curve_tails.still_improving(judged, self.material, self.false_alarms)
        if improving:
            yield self._finding(study, improving, len(judged))

    def _finding(self, study: Study, improving: list[Ending], judged: int) -> Finding:
        middle = sorted((e.end for e in improving), key=lambda end: end.forecast)[len(improving) // 2]
        forecast = _forecast(middle.forecast, middle.forecast_interval())
        steps = curve_tails.typical_steps(study, improving)
        longer = curve_tails.round_up(steps * float(np.median([e.end.stretch for e in improving])))
        sure = float(np.mean([e.end.chance_above(self.material) for e in improving])) * len(improving) / judged
        several = say("{n} of the {judged} best trials still improve at their end,", n=len(improving), judged=judged)
        trials = [e.trial for e in improving]
        return self.finding(
            say(
                "{trials} {at}. Training as long again would add {forecast} of what the run gained.",
                trials=several if judged > 1 else "The best trial still improves at its end,",
                at=study.at(improving[0].steps),
                forecast=forecast,
            ),
            action=say(
                "Lengthen the training from {steps} to {longer} and tune the learning-rate decay for the new length.",
                steps=steps,
                longer=study.length(longer),
            ),
            severity="warning" if middle.forecast >= 5 * self.material else "note",
            confidence=sure,
            trials=trials,
            evidence=(
                CurveEvidence(
                    metrics=(study.spec.objective.metric,),
                    caption=say(
                        "The last {tail} of the training brought {gain} of what the run gained.",
                        tail=Percent(middle.window),
                        gain=Percent(middle.gain, 1),
                    ),
                    trials=tuple(t.id for t in trials),
                ),
                self._figures(improving, judged, forecast),
            ),
            changes=(
                SetField(
                    field="max_train_steps",
                    value=longer,
                    why=f"The best trials still improve at {study.at(steps)}. Training as long again would add {forecast} of the "
                    "gain so far.",
                ),
                Advise(text=_STRETCH),
            ),
        )

    def _figures(self, improving: Sequence[Ending], judged: int, forecast: Message) -> FigureEvidence:
        ends = [e.end for e in improving]
        gains = [say("{gain} ± {error}", gain=Percent(e.gain, 2), error=Percent(e.error, 2)) for e in ends]
        return FigureEvidence(
            rows=(
                ("trials judged", say("{judged}; {n} still improve", judged=judged, n=len(ends))),
                ("evaluations at the end", listed([f"{e.points:,}" for e in ends], 9)),
                ("gain at the end, ± standard error", listed(gains, 9)),
                ("ratio to the gain just before", listed([Number(e.slowing, 2) for e in ends], 9)),
                ("p-value against a flat end", listed([Probability(e.p) for e in ends], 9)),
                ("forecast for as many steps again, 90 % interval", forecast),
                ("limit of the p-value", self.false_alarms),
                ("minimum forecast", Percent(self.material, 1)),
            )
        )


def _forecast(middle: float, interval: tuple[float, float]) -> Message:
    """Return the forecast gain with its 90 % interval: `46 % (36 % to 56 %)`."""
    low, high = (Percent(max(end, 0.0), 1) for end in interval)
    return say("{middle} ({low} to {high})", middle=Percent(middle, 1), low=low, high=high)
