"""The rule `stability-mid`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Settled, Share
from advisor.model.evidence import CurveEvidence, Evidence, FigureEvidence, Line, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.message import Name, Number, Percent, Probability, say
from advisor.model.study import Study
from advisor.stats import jumps


class StabilityMid(Rule):
    """The loss jumps in mid training, after it had fallen steadily.

    ## What it looks at
    The loss after the first tenth of training, in the trials whose learning rate is at most ten times the best trial's. The loss is
    the training loss or, if too little of it was logged, the validation loss or the objective. A jump lasts for at least two
    points, is larger than the same curve's changes by chance, and undoes at least a tenth of the loss's previous fall. A loss that
    stays NaN or infinite counts too.

    Not counted: a single odd minibatch, slow overfitting, a loss that always fluctuates, a jump at a rise of the logged learning
    rate, a jump of less than a fiftieth of the best trial's gain, and a jump of the training loss during which evaluations stay as
    good. In the last case only the definition of the loss changed, for example because augmentation started.

    ## Why it matters
    The steps until the loss recovers are lost, and often the whole run. The usual cause is a few outlying gradients.

    ## What to do
    Clip gradients. Start with the 90th percentile of the unclipped norms as the threshold and tune it around that value. If the
    norm was not logged, log it first. A longer warmup prevents some jumps that clipping does not.

    ## How sure
    An exponential tail extrapolates the changes of each curve over 2, 6, 18 and 54 points. It gives the p-value of the largest
    change over all trials; confidence is one minus that p-value. On simulated falling curves with normal, log-normal, heavy-tailed
    and autocorrelated noise, at most 6 % raised a finding. If the learning rate was not logged, a restart of its schedule looks
    like a jump. With fewer than about 40 points, only a permanent collapse is found.
    """

    playbook: ClassVar[str] = "How can optimization failures be debugged and mitigated?"
    goal: ClassVar[Goal] = "stability"
    before_exploitation: ClassVar[Settled | None] = "not-fired"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("space-infeasible",),
            shares="trials",
            because="These trials failed because training became unstable, wherever they lie in the space.",
            effect_at="everywhere",
        ),
        Relation(
            rules=("stability-spikes", "clip-insufficient", "residual-norm"),
            shares="a trial",
            because="Training becomes unstable in these trials; this is a further symptom.",
            waits=False,
        ),
        Relation(
            rules=("curve-worse-than-chance",),
            shares="trials",
            because="The loss of the best trial jumped up in mid training, which undid what it had learned.",
            min_severity="critical",
            max_severity="warning",
        ),
        Relation(
            rules=("curve-overfitting", "curve-step-variance", "step-position", "adopt"),
            shares="trials",
            because="The loss of these trials jumped up in mid training, which shaped the rest of their curves.",
        ),
        Relation(
            rules=("ckpt-best-lost",), shares="trials", because="The loss jumped up after the best step.", waits=False
        ),
    )

    reach: Factor = 10.0
    """Maximum learning rate of the judged trials, as a multiple of the best trial's. The playbook looks at 5 and 10 times."""
    trials: Count = 64
    """Maximum number of trials to judge, in the order of their learning rates' distance from the best trial's."""
    material: Share = 0.1
    """Minimum jump, as a share of the loss's fall before it; as a share of the logarithm's fall if the loss had fallen tenfold."""
    rare: Share = 0.1
    """Maximum share of unstable trials for a mere warning, if none of them is among the best three."""
    false_alarms: Share = 0.05
    """Probability, per study, that noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        near = instability.within_reach(study, self.reach)
        trials = [loss_blowups.in_mid_training(study, t) for t in near.trials[: self.trials]]
        seen = [b for b in trials if b is not None]
        if not seen:
            raise MissingData(
                f"no trial logged {jumps.MIN_POINTS} losses or evaluations; log the training loss, and the "
                "gradient norm, at every step",
                needs="train_loss",
            )
        unstable = [b for b in seen if b.p * len(seen) <= self.false_alarms and b.share >= self.material]
        if not unstable:
            return
        worst = min(unstable, key=lambda b: (b.p > 1e-6, -b.share, b.trial.index))
        which = [b.trial for b in unstable]
        p = min(worst.p * len(seen), 1.0)
        best = bool({t.index for t in study.ranked()[:3]} & {t.index for t in which})
        rare = len(which) <= self.rare * len(seen)
        norms = instability.late_norms(study, which)
        yield self.finding(
            say(
                "{what}.{others}",
                what=worst.sentence(near.at(worst.trial)),
                others=instability.also_in(1, len(which), len(seen)),
            ),
            action=instability.clip_action(norms),
            severity="critical" if best or not (near.spares_best(which) or rare) else "warning",
            confidence=min(1 - p, 0.99),
            trials=which,
            evidence=self._evidence(study, worst, unstable, len(seen), p),
            changes=instability.clip_changes(norms),
        )

    def _evidence(
        self, study: Study, worst: loss_blowups.Blowup, unstable: Sequence[loss_blowups.Blowup], judged: int, p: float
    ) -> tuple[Evidence, ...]:
        norm, name = _norm_ratio(study, worst), Name(worst.trial.name)
        limits = say("p ≤ {p}, jump ≥ {jump} of the fall", p=Number(self.false_alarms), jump=Percent(self.material))
        return (
            CurveEvidence(
                metrics=(worst.metric, *([study.signals["grad_norm"]] if norm else [])),
                caption=say("{what}.", what=worst.sentence()),
                trials=tuple(b.trial.id for b in unstable[:5]),
                marks=tuple(Mark(trial=b.trial.id, step=b.step, label="jump") for b in unstable[:5]),
                lines=(Line(value=worst.limit, label="limit of noise"),) if math.isfinite(worst.limit) else (),
            ),
            FigureEvidence(
                rows=(
                    ("trials judged", say("{judged} ({n} unstable)", judged=judged, n=len(unstable))),
                    ("points judged", say("{n} of {trial}", n=worst.points, trial=name)),
                    ("level before, after, limit of noise", worst.levels),
                    ("p-value over all trials judged", Probability(p)),
                    (
                        "gradient norm there, over its running median",
                        say("{ratio}", ratio=Number(norm) if norm else "not logged"),
                    ),
                    ("thresholds", limits),
                )
            ),
        )


def _norm_ratio(study: Study, blowup: loss_blowups.Blowup) -> float | None:
    """Return the largest ratio of gradient norm to running median within 5 logged points of the jump; None without norms."""
    curve = study.peaks(blowup.trial, "grad_norm").finite
    positive = curve.values > 0
    outliers = jumps.outliers(curve.values[positive], 0.5, 1.0)
    if outliers is None:
        return None
    at = int(np.searchsorted(curve.steps[positive], blowup.step))
    around = outliers.ratios[max(at - 3, 0) : at + 2]
    return float(around.max()) if len(around) else None
