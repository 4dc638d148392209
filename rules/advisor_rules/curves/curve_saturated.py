"""The rule `curve-saturated`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.curves import curve_tails
from advisor.engine.rule import Count, Expectation, Factor, Relation, Rule, Share
from advisor.model.change import Advise, SetField
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal
from advisor.model.study import Study


class CurveSaturated(Rule):
    """Training and validation were flat long before the training ended.

    ## What it looks at
    In each of the best few trials: the step from which the smoothed objective stays within a small tolerance, or its noise, of its
    final level. With a margin on top, that is how long the trial needed. The rule speaks when, in most of these trials, a good part
    of the steps could be saved, the steps that would go *surely* brought next to nothing (upper confidence bound), the curve
    neither rises again nor still improves, and the cost on training data, where it was logged, is flat too. Where that cost keeps
    falling under a flat validation curve, it is not this finding: that is overfitting, or on its way there.

    ## Why it matters
    Compute does not limit such a study: the steps that bring nothing could pay for more trials.

    ## What to do
    Set `max_train_steps` to where the slowest of these trials had settled, plus the margin, and shorten the schedule with it. When
    in doubt err on the long side: where the best checkpoint is kept, training too long only costs time.

    ## How sure
    A trial counts only if the 95 % upper bound of what the dropped steps brought is below the threshold, so noise makes the rule
    quiet, not loud. Confidence: 0.95 times the share of the best trials that agree. In 200 simulated studies each of curves that
    fall or rise again (power laws, logarithms, lines, cosine schedules, overfitting) it fired in 0 to 0.5 %; promised are 5 %. On
    curves of 50 evaluations that settle in the first fifth of the steps it fired in 99 % where their noise is 0.5 % of the gain,
    and in 72 % where it is 2 %. Where the learning rate had fallen below a hundredth of its peak, it is the schedule that keeps the
    curve flat, and the rule keeps quiet.

    *Example:* "3 of the 3 best trials were flat from 42 % of their 700 steps on, on training and validation data: what came after
    370 steps brought at most 0.3 % of what the run gained."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "steps"
    predicts: ClassVar[Expectation] = "no-worse"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("steps-compute-bound",),
            shares="trials",
            because="That the curves are flat long before their end is what shows it.",
            waits=False,
        ),
        Relation(
            rules=("step-position",),
            shares="study",
            because="Where a curve is flat, small ups and downs decide which of its steps is best.",
        ),
    )

    best: Count = 3
    """How many of the best trials to look at: the playbook asks for at least the best few."""
    reach: Share = 0.1
    """How far behind the best a trial may be to count among them, as a share of what the best trial gained over its run."""
    tolerance: Share = curve_tails.TOLERANCE
    """How near its final level the objective has settled, as a share of the run's gain; twice its noise if that is more."""
    rest: Share = 0.05
    """Largest 95 % bound of what the dropped steps brought, as a share of the run's gain; twice that on training data."""
    margin: Factor = curve_tails.MARGIN
    """How much longer than up to the settling step to train; ours, because the playbook would rather train too long."""
    saved: Share = 0.25
    """Smallest share of the steps whose saving is worth a finding."""
    material: Share = 0.01
    """Forecast gain above which a trial still improves: as in `curve-still-improving`."""
    false_alarms: Share = 0.05
    """How often, per study, the rule may fire although the curves still fall."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        judged = curve_tails.best_endings(study, self.best, self.reach, tolerance=self.tolerance, margin=self.margin)
        limits = {"rest": self.rest, "saved": self.saved, "material": self.material, "alpha": self.false_alarms}
        firing = [e for e in judged if e.saturated(**limits)]
        if 2 * len(firing) <= len(judged):
            return
        slowest = max(e.settled for e in firing)
        steps = curve_tails.typical_steps(study, firing)
        fewer = min(curve_tails.round_up(self.margin * slowest * steps), steps)
        rest = max(0.0, *(e.plateau.rest for e in firing))
        which = "training and validation data" if any(e.train_plateau for e in firing) else "validation data"
        who = f"{len(firing)} of the {len(judged)} best trials were" if len(judged) > 1 else "The best trial was"
        trials = [e.trial for e in firing]
        yield self.finding(
            f"{who} flat from {slowest:.0%} of {study.length(steps)} on, on {which}: what came after {study.length(fewer)} "
            f"brought at most {rest:.1%} of what the run gained.",
            action=f"Train for {study.length(fewer)} instead of {steps:,} and spend what that saves on more trials.",
            severity="note",
            confidence=0.95 * len(firing) / len(judged),
            trials=trials,
            evidence=(
                CurveEvidence(
                    metrics=(study.spec.objective.metric,),
                    caption=f"Past the marks no trial gains more than {rest:.1%} of what it gained before.",
                    trials=tuple(t.id for t in trials),
                    marks=tuple(
                        Mark(trial=e.trial.id, step=round(e.settled * e.steps), label="settled") for e in firing
                    ),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(judged)}, of which {len(firing)} settled early"),
                        ("settled at, share of the steps", ", ".join(f"{e.settled:.0%}" for e in firing)),
                        ("tolerance", ", ".join(f"{e.plateau.tolerance:.2%}" for e in firing)),
                        (
                            "rest of the steps brought at most",
                            ", ".join(f"{max(e.plateau.rest, 0):.2%}" for e in firing),
                        ),
                        ("thresholds", f"rest at most {self.rest:.1%}, at least {self.saved:.0%} of the steps saved"),
                    )
                ),
            ),
            changes=(
                SetField(
                    field="max_train_steps",
                    value=fewer,
                    why=f"The slowest settled at {slowest:.0%} of {study.length(steps)}; this is {self.margin:g} times that.",
                ),
                Advise(text="Shorten the learning-rate schedule with the training, so that both still end together."),
            ),
        )
