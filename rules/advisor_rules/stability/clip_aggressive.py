"""The rule `clip-aggressive`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.stability import clipping, instability
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.evidence import CurveEvidence, Evidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import jumps


class ClipAggressive(Rule):
    """More than half of the updates are clipped, so that clipping sets the length of the steps instead of the learning rate.

    ## What it looks at
    The share of clipped updates over the whole training: as the hook counts them, else the logged gradient norms at or above the
    threshold. Asked of the five best trials among those that gained at least half of what the best one gained; it must be so in
    the best one of them and in most. A trial far from the best that clips everything is a hyperparameter that was tried, no fault.

    ## Why it matters
    Clipping is there for outliers. Where it cuts most updates to one length, it is a lower learning rate in disguise: the learning
    rate that the study finds is not the one that trains, and moves when the threshold or the batch size does. With Adam, which
    divides by the size of the gradient anyway, it is the small gradients of quiet phases that then count too much.

    ## What to do
    Raise the threshold to where typical norms pass, the 90th percentile of the norms before clipping to begin with. If training is
    then unstable, lower the learning rate, or warm it up longer, rather than clip so much.

    ## How sure
    Where every step is logged the share is a count. Where it comes from a part of the steps, the excess over the half must pass an
    exact binomial test, for which logged points, not steps, are counted; confidence is one minus its p-value, times the share of
    the good trials that agree. In 200 simulated studies each of 1 to 8 trials of 30 to 2,000 points with just half of the updates
    clipped, 0 to 4.5 % fired.

    *Example:* "79 % of the updates of trial-3, the best trial, are clipped at a norm of 0.003, and more than half in 4 of
    the 5 best trials."
    """

    playbook: ClassVar[str] = "Gradient clipping"
    goal: ClassVar[Goal] = "stability"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "space-insensitive",
                "space-boundary",
            ),
            shares="rates",
            because="Where most updates are clipped, the clipping sets their length, and a higher learning rate changes little.",
        ),
    )

    most: Share = 0.5
    """Share of clipped updates from which on clipping is extreme: the playbook's number."""
    best: Count = 5
    """How many of the best trials to look at."""
    reach: Share = 0.5
    """How far behind the best a trial may be to be a good one, as a share of what the best trial gained over its run."""
    false_alarms: Share = 0.05
    """How often, per study, trials with just that share may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        good = curve_tails.good_trials(study, self.reach)[: self.best]
        judged = [c for t in good if (c := clipping.read(study, t)) is not None]
        if not judged:
            raise MissingData(
                f"no good trial says at which gradient norm it clips and logged {jumps.MIN_POINTS} norms; log the norm before "
                "clipping at every step, as train/grad_norm, and the threshold as grad_clip_norm (the advisor's training hook "
                "does both)"
            )
        hard = [c for c in judged if c.share > self.most and c.p(self.most) <= self.false_alarms]
        if judged[0] not in hard or 2 * len(hard) <= len(judged):
            return
        yield self._finding(study, judged, hard)

    def _finding(self, study: Study, judged: list[clipping.Clipping], hard: list[clipping.Clipping]) -> Finding:
        first, norms = hard[0], clipping.unclipped_norms(study, hard)
        at = f" at a norm of {first.threshold:.3g}" if math.isfinite(first.threshold) else ""
        best = "the best trial" if first.trial == study.ranked()[0] else "the best trial that logged it"
        others = f", and more than half in {len(hard)} of the {len(judged)} best trials" if len(judged) > 1 else ""
        instead = "the 90th percentile of the norms before clipping"
        to = f" to {np.quantile(norms, 0.9):.3g}, {instead}" if len(norms) else f" to {instead} once they are logged"
        p = first.p(self.most)
        return self.finding(
            f"{first.share:.0%} of the updates of {first.trial.name}, {best}, are clipped{at}{others}.",
            action=f"Raise the clipping threshold{to}; if training is then unstable, lower the learning rate.",
            severity="warning",
            confidence=(1 - p) * len(hard) / len(judged),
            trials=[c.trial for c in hard],
            evidence=(
                *_curves(study, first),
                FigureEvidence(
                    rows=(
                        ("share of clipped updates", ", ".join(f"{c.share:.0%}" for c in judged)),
                        ("logged points", ", ".join(f"{c.points:,}" for c in judged)),
                        (f"chance of as many, were {self.most:.0%} clipped", f"{p:.2g}"),
                        ("thresholds", f"more than {self.most:.0%} clipped, p at most {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=instability.clip_changes(norms),
        )


def _curves(study: Study, first: clipping.Clipping) -> tuple[Evidence, ...]:
    """The best trial's gradient norm against its threshold, where both are known."""
    if not study.has("grad_norm") or not math.isfinite(first.threshold):
        return ()
    return (
        CurveEvidence(
            metrics=(study.signals["grad_norm"],),
            caption=f"The gradient norm of {first.trial.name} exceeds its threshold in {first.share:.0%} of the updates.",
            trials=(first.trial.id,),
            lines=(Line(value=first.threshold, label="clipped from here on"),),
        ),
    )
