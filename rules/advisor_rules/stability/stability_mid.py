"""The rule `stability-mid`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Settled, Share
from advisor.model.evidence import Evidence, FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.message import Name, Number, Percent, Probability, say
from advisor.model.study import Study
from advisor.stats import jumps, spikes
from advisor_rules.stability._unstable import Unstable, find_unstable, search_lower


class StabilityMid(Rule):
    """The loss jumps in mid training, after it had fallen steadily.

    ## What it looks at
    The loss after the first tenth of training, in the trials whose learning rate is at most ten times the best trial's. The loss is
    the training loss or, if too little of it was logged, the validation loss or the objective. A jump lasts for at least two
    points, is larger than the same curve's changes by chance, and undoes at least a tenth of the loss's previous fall. A loss that
    stays NaN or infinite counts too.

    Not counted: a single odd minibatch, slow overfitting, a loss that always fluctuates, a jump at a rise of the logged learning
    rate, a jump of less than a fiftieth of the best trial's gain, and jumps with two other causes. If evaluations do not get
    worse, only the definition of the loss changed, for example because augmentation started. If most trials rise at the same step,
    it is a step of the schedule (a warm restart) or of the data (a curriculum). In reinforcement learning, results dip in passing,
    so only a collapse that lasts to the end counts.

    ## Why it matters
    The steps until the loss recovers are lost, and often the whole run. The usual cause is a few outlying gradients.

    ## What to do
    Clip gradients. Start with the 90th percentile of the unclipped norms as the threshold and tune it around that value. If the
    norm was not logged, log it first. A longer warmup prevents some jumps that clipping does not.
    If results improve down to the lowest rates that were tried, search lower rates first, as after `stability-early`.

    ## How sure
    An exponential tail extrapolates the changes of each curve over 2, 6, 18 and 54 points. It gives the p-value of the largest
    change over all trials; confidence is one minus that p-value. For a collapse to the end that undoes half of the fall, only the
    changes before it count, because a collapsed loss is noisier. On simulated falling curves with normal, log-normal, heavy-tailed
    and autocorrelated noise, at most 6 % raised a finding. In a study of one or two trials without the logged learning rate, a
    restart of its schedule looks like a jump.
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
    """Maximum share of unstable trials for a mere note, if none of them is among the best three; a warning if their learning rates
    are all above the best trial's.
    """
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
        found = find_unstable(
            near,
            seen,
            false_alarms=self.false_alarms,
            material=self.material,
            severity=lambda b: (b.p > 1e-6, -b.share, b.trial.index),
        )
        if found is None:
            return
        best = bool({t.index for t in study.ranked()[:3]} & {t.index for t in found.trials})
        spared, rare = near.spares_best(found.trials), len(found.trials) <= self.rare * found.judged
        norms, lower = instability.late_norms(study, found.trials), found.lower_rates(study, self.false_alarms)
        yield self.finding(
            found.message,
            action=search_lower(lower) if lower else instability.clip_action(norms),
            severity="critical" if best or not (spared or rare) else "warning" if spared else "note",
            confidence=found.confidence,
            side=near.side(found.trials),
            trials=found.trials,
            evidence=self._evidence(study, found),
            changes=(lower,) if lower else instability.clip_changes(norms),
        )

    def _evidence(self, study: Study, found: Unstable) -> tuple[Evidence, ...]:
        worst, norm = found.worst, _norm_ratio(study, found.worst)
        limits = say("p ≤ {p}, jump ≥ {jump} of the fall", p=Number(self.false_alarms), jump=Percent(self.material))
        ratio = say("{ratio}", ratio=Number(norm) if norm else "not logged")
        return (
            found.curves("jump", *([study.signals["grad_norm"]] if norm else [])),
            FigureEvidence(
                rows=(
                    ("trials judged", say("{judged} ({n} unstable)", judged=found.judged, n=len(found.blowups))),
                    ("points judged", say("{n} of {trial}", n=worst.points, trial=Name(worst.trial.name))),
                    ("level before, after, limit of noise", worst.levels),
                    ("p-value over all trials judged", Probability(found.p)),
                    ("gradient norm there, over its running median", ratio),
                    ("thresholds", limits),
                )
            ),
        )


def _norm_ratio(study: Study, blowup: loss_blowups.Blowup) -> float | None:
    """Return the largest ratio of gradient norm to running median within 5 logged points of the jump; None without norms."""
    curve = study.peaks(blowup.trial, "grad_norm").finite
    positive = curve.values > 0
    outliers = spikes.outliers(curve.values[positive], 0.5, 1.0)
    if outliers is None:
        return None
    at = int(np.searchsorted(curve.steps[positive], blowup.step))
    around = outliers.ratios[max(at - 3, 0) : at + 2]
    return float(around.max()) if len(around) else None
