"""The rule `curve-still-improving`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.engine.rule import Count, Expectation, Relation, Rule, Share
from advisor.model.change import Advise, SetField
from advisor.model.evidence import CurveEvidence, FigureEvidence
from advisor.model.finding import Finding, Goal
from advisor.model.study import Study


class CurveStillImproving(Rule):
    """The best trials still improve when their training ends.

    ## What it looks at
    The objective over the last fifth of the steps, in the best few trials: is it falling beyond the trial's own noise, by the slope
    of a line through it (widened where the noise is autocorrelated) or by a sign test of its steps? The slope, and how much it
    shrank since the fifth before, give a forecast of what training as long again would bring. The rule speaks when most of the best
    trials improve *and* the forecast is worth having. A trial that was cut short is no evidence: of course it still improved.

    ## Why it matters
    Compute limits such a study: training longer or faster improves results directly, and trials compared too early can be ranked
    wrongly.

    ## What to do
    Train longer, by the factor that the curves ask for (1.5 to 3), and stretch the learning-rate schedule with it: a cosine decay
    over the new length from the same base rate; a linear decay as long as before, after a longer constant part. Extra steps at the
    tiny rate at which the old schedule ended are wasted. Then tune the decay again.

    ## How sure
    Confidence: the probability, from the noise alone, that the forecast exceeds the threshold, times the share of the best trials
    that agree. The forecast takes the curve to go on as it ends; a schedule that decays to zero makes it a rough one. In 400
    simulated studies each of flat curves with 10 to 50 evaluations the rule fired in at most 1.3 % with white noise and 3 % with a
    lag-1 correlation of 0.5; promised are 5 %. Noise that wanders over tens of evaluations (0.8 and 0.9) brings it to 3 to 5 %.

    *Example:* "3 of the 3 best trials still improve when they end at step 10,000: training as long again promises 46 % (36 % to
    56 %) of what the run gained."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "steps"
    predicts: ClassVar[Expectation] = "longer-reaches"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("steps-compute-bound",),
            shares="trials",
            because="That the curves still fall at their end is what shows it.",
            waits=False,
        ),
        Relation(
            rules=(
                "step-position",
                "tuning-saturated",
            ),
            shares="study",
            because="The trials end before they are done.",
        ),
        Relation(
            rules=("space-undersampled",),
            shares="study",
            because="The trials end before they are done: the best of them is the fastest, which need not be the best in the end.",
        ),
    )

    best: Count = curve_tails.BEST
    """How many of the best trials to look at: the playbook asks for at least the best few."""
    reach: Share = curve_tails.REACH
    """How far behind the best a trial may be to count among them, as a share of what the best trial gained over its run."""
    tail: Share = curve_tails.TAIL
    """Share of the steps that is the end of training; more where it holds fewer than 5 evaluations."""
    material: Share = curve_tails.MATERIAL
    """Smallest forecast gain worth training longer for, as a share of what the run gained; ours."""
    false_alarms: Share = 0.05
    """How often, per study, noise alone may raise a finding: the level of each trial's test; most trials must pass it."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        judged = curve_tails.best_endings(study, self.best, self.reach, tail=self.tail)
        firing = curve_tails.still_improving(judged, self.material, self.false_alarms)
        if not firing:
            return
        middle = sorted((e.end for e in firing), key=lambda end: end.forecast)[len(firing) // 2]
        low, high = (max(x, 0.0) for x in middle.forecast_interval())
        steps = curve_tails.typical_steps(study, firing)
        longer = curve_tails.round_up(steps * float(np.median([e.end.stretch for e in firing])))
        sure = float(np.mean([e.end.chance_above(self.material) for e in firing])) * len(firing) / len(judged)
        promise = f"{middle.forecast:.1%} ({low:.1%} to {high:.1%}) of what the run gained"
        who = f"{len(firing)} of the {len(judged)} best trials still improve when they end" if len(judged) > 1 else ""
        who = who or "The best trial still improves when it ends"
        trials = [e.trial for e in firing]
        yield self.finding(
            f"{who} at {study.at(firing[0].steps)}: training as long again promises {promise}.",
            action=f"Train for {study.length(longer)} instead of {steps:,} and tune the learning-rate decay for the new length.",
            severity="warning" if middle.forecast >= 5 * self.material else "note",
            confidence=sure,
            trials=trials,
            evidence=(
                CurveEvidence(
                    metrics=(study.spec.objective.metric,),
                    caption=f"The last {middle.window:.0%} of the training brought {middle.gain:.1%} of what the run gained.",
                    trials=tuple(t.id for t in trials),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(judged)}, of which {len(firing)} still improve"),
                        ("evaluations at the end", ", ".join(str(e.end.points) for e in firing)),
                        ("gain at the end", ", ".join(f"{e.end.gain:.2%} ± {e.end.error:.2%}" for e in firing)),
                        ("over the gain just before", ", ".join(f"{e.end.slowing:.2f}" for e in firing)),
                        ("p-value against a flat end", ", ".join(f"{e.end.p:.2g}" for e in firing)),
                        (
                            "forecast for as many steps again",
                            f"{middle.forecast:.1%}, 90 % interval {low:.1%} to {high:.1%}",
                        ),
                        ("thresholds", f"forecast above {self.material:.1%}, p at most {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=(
                SetField(
                    field="max_train_steps",
                    value=longer,
                    why=f"The best trials still improve at {study.at(steps)}: as long again promise {promise}.",
                ),
                Advise(
                    text="Spend the extra steps at a high learning rate: stretch a cosine decay from the same base rate over the "
                    "new length, keep a linear decay as long as it was after a longer constant part; then tune the decay again."
                ),
            ),
        )
