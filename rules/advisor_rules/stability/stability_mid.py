"""The rule `stability-mid`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Settled, Share
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import jumps


class StabilityMid(Rule):
    """The loss jumps up suddenly in mid training, after it had fallen steadily.

    ## What it looks at
    The training loss (where it was not logged often enough, the validation loss or the objective) after the first tenth of
    training, in the trials whose learning rate is up to ten times the best trial's. A jump is a rise from one level, a median over
    some points, to the next. It lasts for two points or more, is larger than the same curve's moves ever are by chance, and undoes
    at least a tenth of what the loss had fallen. A loss that turns NaN or infinite for good after it had fallen counts too. A
    single odd minibatch, slow overfitting, a loss that always fluctuates, a jump where the logged learning rate was raised, and one
    of less than a fiftieth of what the best trial gains do not; nor does one of the training loss across which evaluations stay as
    good as they were: then the loss measures something else from there on, as augmentation sets in or its weights change.

    ## Why it matters
    The steps until the loss has recovered are lost, often the run is. What goes wrong is usually a few outlying gradients.

    ## What to do
    Clip gradients, with the 90th percentile of the unclipped norms as the first threshold, and tune it around there. If the norm
    was not logged, log it first. A longer warmup mends some jumps that clipping does not.

    ## How sure
    The bulk of the moves of the same curve, over windows of 2, 6, 18 and 54 points, is continued by an exponential tail; the
    largest of all moves of all trials judged passes the limit with the promised probability. Confidence is one minus that p-value.
    On simulated falling curves of 22 to 1,500 points with normal, log-normal, heavy-tailed (Student's t with 2 or 3 degrees of
    freedom) and autocorrelated noise at most 6 % fired, most of them never. Where the learning rate was not logged, a restart of
    its schedule cannot be told from a jump, and with fewer than some 40 points only a collapse that stays is found.

    *Example:* "The loss of trial-3 jumped from 2.9 to 8.1 at step 29,400, which undid 74 % of what it had fallen."
    """

    playbook: ClassVar[str] = "How can optimization failures be debugged and mitigated?"
    goal: ClassVar[Goal] = "stability"
    before_exploitation: ClassVar[Settled | None] = "not-fired"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("space-infeasible",),
            shares="trials",
            because="The trials failed because their training blew up, wherever in the space they lie.",
            effect_at="everywhere",
        ),
        Relation(
            rules=(
                "stability-spikes",
                "clip-insufficient",
                "residual-norm",
            ),
            shares="a trial",
            because="Training becomes unstable; this says more about it.",
            waits=False,
        ),
        Relation(
            rules=("curve-worse-than-chance",),
            shares="trials",
            because="The loss of the best trial jumped up in mid training, and what it had learned is gone.",
            min_severity="critical",
            max_severity="warning",
        ),
        Relation(
            rules=(
                "curve-overfitting",
                "curve-step-variance",
                "step-position",
                "adopt",
            ),
            shares="trials",
            because="The loss of these trials jumped up in mid training, and what came after it shows the jump.",
        ),
        Relation(
            rules=("ckpt-best-lost",),
            shares="trials",
            because="The loss jumped up after the best step.",
            waits=False,
        ),
    )

    reach: Factor = 10.0
    """Times the best trial's learning rate up to which trials are judged: the playbook looks at 5 and 10 times."""
    trials: Count = 64
    """How many trials to judge at most, those with learning rates nearest to the best first."""
    material: Share = 0.1
    """Smallest jump, as a share of what the loss had fallen before; of its logarithm where it had fallen tenfold."""
    rare: Share = 0.1
    """Share of the trials judged up to which unstable ones, none of them among the best three, are no reason to stop."""
    false_alarms: Share = 0.05
    """How often, per study, noise alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        near = instability.within_reach(study, self.reach)
        found = [loss_blowups.in_mid_training(study, t) for t in near.trials[: self.trials]]
        seen = [b for b in found if b is not None]
        if not seen:
            raise MissingData(
                f"no trial logged {jumps.MIN_POINTS} losses or evaluations; log the training loss, and the "
                "gradient norm, at every step"
            )
        unstable = [b for b in seen if b.p * len(seen) <= self.false_alarms and b.share >= self.material]
        if not unstable:
            return
        worst = min(unstable, key=lambda b: (b.p > 1e-6, -b.share, b.trial.index))
        which = [b.trial for b in unstable]
        p = min(worst.p * len(seen), 1.0)
        others = (
            f"; {len(which) - 1} more of the {len(seen)} trials judged {'is' if len(which) == 2 else 'are'} unstable too"
            if len(which) > 1
            else ""
        )
        best = bool({t.index for t in study.ranked()[:3]} & {t.index for t in which})
        rare = len(which) <= self.rare * len(seen)
        norms = instability.late_norms(study, which)
        norm = loss_blowups.norm_there(study, worst)
        yield self.finding(
            f"The {worst.subject} of {worst.trial.name}{near.rate(worst.trial)} {worst.said}{others}.",
            action=instability.clip_action(norms),
            severity="critical" if best or not (near.spare(which) or rare) else "warning",
            confidence=min(1 - p, 0.99),
            trials=which,
            evidence=(
                CurveEvidence(
                    metrics=(worst.metric, *([study.signals["grad_norm"]] if norm else [])),
                    caption=f"The {worst.subject} of {worst.trial.name} {worst.said}.",
                    trials=tuple(t.id for t in which[:5]),
                    marks=tuple(Mark(trial=b.trial.id, step=b.step, label="jump") for b in unstable[:5]),
                    lines=(Line(value=worst.limit, label="limit of noise"),) if math.isfinite(worst.limit) else (),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(seen)}, of which {len(which)} unstable"),
                        ("points judged", f"{worst.points:,} of {worst.trial.name}"),
                        ("level before, after, limit of noise", worst.figures),
                        ("p-value, over all trials judged", f"{p:.2g}"),
                        ("gradient norm there, over its running median", f"{norm:.3g}" if norm else "not logged"),
                        ("thresholds", f"p {self.false_alarms:g}, {self.material:.0%} of the fall"),
                    )
                ),
            ),
            changes=instability.clip_changes(norms),
        )
