"""The rule `stability-early`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Settled, Share
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study


class StabilityEarly(Rule):
    """The loss rises instead of falling early in training, or stops being a number.

    ## What it looks at
    The first tenth of training, in the trials whose learning rate is up to ten times the best trial's: further above it any
    training is unstable, and that proves nothing. A trial is unstable early if its loss turns NaN or infinite there for good, or if
    it rises above its first value, beyond the noise of that value and of the minibatches after it, for ten steps (one point where
    fewer were logged), and by at least a tenth of what the whole training gains. The loss is that of the training batches, else an
    evaluated one. Recovery does not excuse it. A loss that never moves is not unstable, nor is one that rises by less than a
    fiftieth of what the best trial gains, nor a first step of Adam that overshoots and is back within ten.

    ## Why it matters
    Instability is what keeps the learning rate below what the problem could bear. A run that blows up early and recovers then
    trains slowly and looks healthy in evaluations thousands of steps apart. Nothing else in the study is worth tuning before.

    ## What to do
    Find the shortest warmup, by a short study of its own: the learning rate rises from zero to ten times the lowest unstable one
    over 10 steps to a tenth of the training, and stays there for twice as long (`warmup-shortest` reads it). If that is not enough,
    clip gradients, then try another optimizer. A lower learning rate is the last resort.

    ## How sure
    Noise is read off the run itself: an exponential tail of its own scale for the highest level, a t-distribution for the first
    value; the promised level is shared among the trials judged. Confidence is one minus the p-value times their number. On
    simulated runs that fall at once, late, slowly or never, with normal, skewed or heavy-tailed noise, 0 to 6 % fired; with
    autocorrelated noise (0.5 to 0.9) at most 1 %. A start is also asked whether what comes after would look like it: of runs that
    never fall and wander for tens of points, in which a third and more rise as far, 0 to 1 % fired, and 9 % where the noise is
    heavy-tailed (Student's t of 3 degrees of freedom). A loss that first falls and then rises to less than where it
    began, as momentum makes it ring, is not counted.

    *Example:* "The loss of trial-3 at lr 0.3, 3 times the best trial's, rose from 2.31 to 7.9 at step 40 instead of falling."
    """

    playbook: ClassVar[str] = "How can optimization failures be debugged and mitigated?"
    goal: ClassVar[Goal] = "stability"
    probes: ClassVar[frozenset[str]] = frozenset({"learning-rate", "early-instability"})
    before_exploitation: ClassVar[Settled | None] = "not-fired"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("space-infeasible",),
            shares="trials",
            because="The trials failed because their training blew up at its start, wherever in the space they lie.",
            effect_at="everywhere",
        ),
        Relation(
            rules=(
                "stability-mid",
                "stability-spikes",
                "clip-insufficient",
                "residual-norm",
            ),
            shares="a trial",
            because="Training is unstable from its start on; this says more about it.",
            waits=False,
        ),
        Relation(
            rules=("curve-worse-than-chance",),
            shares="trials",
            because="The best trial is unstable from its start on, which keeps it from learning.",
            min_severity="critical",
            max_severity="warning",
        ),
        Relation(
            rules=(
                "curve-overfitting",
                "curve-step-variance",
            ),
            shares="trials",
            because="These trials blew up at their start, and what came after it shows that.",
        ),
    )

    reach: Factor = 10.0
    """Times the best trial's learning rate up to which trials are judged: the playbook looks at 5 and 10 times."""
    trials: Count = 64
    """How many trials to judge at most, those with learning rates nearest to the best first."""
    lasting: Count = 10
    """Steps for which the loss must stay high: the shortest warmup that the playbook tries, so the shortest that one could mend."""
    material: Share = 0.1
    """Smallest rise, as a share of what the whole training gains below the first loss."""
    false_alarms: Share = 0.05
    """How often, per study, noise alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        near = instability.within_reach(study, self.reach)
        found = [loss_blowups.at_start(study, t, self.lasting) for t in near.trials[: self.trials]]
        seen = [b for b in found if b is not None]
        unstable = [b for b in seen if b.p * len(seen) <= self.false_alarms and b.share >= self.material]
        if not unstable:
            _assess(seen)
            return
        worst = min(unstable, key=lambda b: (b.p, -b.share, b.trial.index))
        which = [b.trial for b in unstable]
        p = min(worst.p * len(seen), 1.0)
        others = (
            f"; so was the start of {len(which) - 1} more of the {len(seen)} trials judged" if len(which) > 1 else ""
        )
        bound = f"learning rates up to {self.reach:g} times the best" if near.parameter else "all"
        yield self.finding(
            f"The {worst.subject} of {worst.trial.name}{near.rate(worst.trial)} {worst.said}{others}.",
            action="Warm the learning rate up, over as few steps as train stably; lower the learning rate only as a last resort.",
            severity="warning" if near.spare(which) else "critical",
            confidence=min(1 - p, 0.99),
            trials=which,
            evidence=(
                CurveEvidence(
                    metrics=(worst.metric,),
                    caption=f"The {worst.subject} of {worst.trial.name} {worst.said}.",
                    trials=tuple(t.id for t in which[:5]),
                    marks=tuple(Mark(trial=b.trial.id, step=b.step, label="unstable") for b in unstable[:5]),
                    lines=(Line(value=worst.limit, label="limit of noise"),) if math.isfinite(worst.limit) else (),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(seen)} ({bound}), of which {len(which)} unstable early"),
                        ("points early in training", f"{worst.points} of {worst.trial.name}"),
                        ("first value, worst level, limit of noise", worst.figures),
                        ("p-value, over all trials judged", f"{p:.2g}"),
                        (
                            "thresholds",
                            f"p {self.false_alarms:g}, rise {self.material:.0%} of the gain, {self.lasting} steps",
                        ),
                    )
                ),
            ),
            changes=instability.warmup_changes(min((instability.rate_of(study, t) for t in which), default=math.nan)),
        )


def _assess(seen: Sequence[loss_blowups.Blowup]) -> None:
    """Raise MissingData if no trial logged enough of its start to be called stable."""
    if any(b.points for b in seen):
        return
    start = f"the first tenth of its training and the first {instability.PROBE_STEPS} steps"
    what = f"no trial logged {loss_blowups.FEWEST_EARLY} losses within {start}" if seen else "no trial logged a loss"
    raise MissingData(f"{what}; log the training loss at every step of the first {instability.PROBE_STEPS}")
