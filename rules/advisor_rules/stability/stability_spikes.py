"""The rule `stability-spikes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.stability import instability
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.evidence import CurveEvidence, FigureEvidence, HistogramEvidence, Line, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats import jumps


class StabilitySpikes(Rule):
    """Some gradients are far larger than their neighbours: the norm before clipping has outliers.

    ## What it looks at
    The unclipped gradient norm of the best trials and of those with learning rates just above, after the first tenth of training,
    as ratios to its running median over 31 logged points. Where windows were logged, each window's largest norm counts. A ratio is
    an outlier if it is at least threefold *and* larger than the bulk of the same trial's ratios explains: a workload whose norms
    always scatter widely has no outliers.

    ## Why it matters
    A single such step can undo many others: outliers of the gradient norm are what sudden instability in mid training comes from.

    ## What to do
    Clip gradients, with the 90th percentile of the unclipped norms as the first threshold, and tune it around there. A threshold
    that clips more than half of all steps is a lower learning rate in disguise.

    ## How sure
    The limit continues the bulk of the logarithms of the ratios by an exponential tail, so that the largest of all points of
    all trials judged passes it with the promised probability; healthy norms are about log-normal, whose tail is lighter.
    Confidence is one minus the p-value of the largest ratio. On simulated norms (log-normal, log-Laplace, gamma, Gumbel,
    autocorrelated; 30 to 3,000 points) 0 to 4 % fired; eightfold outliers were found in nine of ten. Norms whose very logarithm
    is heavy-tailed (Student's t with 5 degrees of freedom) do have outliers, and are told so in 10 % with 300 or 3,000 points.

    *Example:* "The gradient norm of trial-3 exceeds 3 times its running median at 12 of 668 logged points, at most 60-fold."
    """

    playbook: ClassVar[str] = "How can optimization failures be debugged and mitigated?"
    goal: ClassVar[Goal] = "stability"

    reach: Factor = 10.0
    """Times the best trial's learning rate up to which trials are judged: the playbook looks at 5 and 10 times."""
    trials: Count = 64
    """How many trials to judge at most, those with learning rates nearest to the best first."""
    factor: Factor = 3.0
    """Smallest ratio to the running median that counts; healthy real runs with some hundred logged norms stay below it."""
    false_alarms: Share = 0.05
    """How often, per study, norms without outliers may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        near = instability.within_reach(study, self.reach)
        curves = [(t, instability.late_norm(study, t)) for t in near.trials[: self.trials]]
        curves = [(t, c) for t, c in curves if len(c) >= jumps.MIN_POINTS]
        if not curves:
            what = (
                f"no trial logged {jumps.MIN_POINTS} gradient norms after its start"
                if study.has("grad_norm")
                else "no gradient norm was logged"
            )
            raise MissingData(f"{what}; {instability.LOG_NORM[0].lower()}{instability.LOG_NORM[1:-1]}")
        chance = self.false_alarms / len(curves)
        judged = [(t, c, o) for t, c in curves if (o := jumps.outliers(c.values, chance, self.factor)) is not None]
        spiky = [(t, c, o) for t, c, o in judged if len(o.indices)]
        if not spiky:
            return
        trial, curve, found = max(spiky, key=lambda s: (len(s[2].indices), s[2].largest))
        which = [t for t, _, _ in spiky]
        norms = instability.late_norms(study, which)
        p = min(1.0, found.p * len(curves))
        metric, count = study.signals["grad_norm"], len(found.indices)
        where = f"{count} of {len(curve):,} logged point{'s' if count > 1 else ''}"
        others = f"; so do those of {len(which) - 1} more of the {len(curves)} trials judged" if len(which) > 1 else ""
        yield self.finding(
            f"The gradient norm of {trial.name}{near.rate(trial)} exceeds {max(self.factor, found.limit):.2g} times its running "
            f"median at {where}, at most {found.largest:.3g}-fold{others}.",
            action=instability.clip_action(norms),
            severity="warning",
            confidence=min(1 - p, 0.99),
            subject=metric,
            trials=which,
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"The norm of {trial.name} leaves its running median at {where}.",
                    trials=tuple(t.id for t in which[:5]),
                    marks=tuple(
                        Mark(trial=trial.id, step=int(curve.steps[i]), label=f"{found.ratios[i]:.3g}-fold")
                        for i in found.indices[:5]
                    ),
                ),
                _histogram(metric, norms),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(curves)}, of which {len(which)} with outliers"),
                        (
                            "norms judged",
                            f"{len(curve):,} of {trial.name}, after the first {instability.EARLY:.0%} of its steps",
                        ),
                        ("largest ratio to the running median", f"{found.largest:.3g}"),
                        ("ratio that chance explains", f"{found.limit:.3g}, with probability {chance:.2g}"),
                        ("p-value, over all trials judged", f"{p:.2g}"),
                        ("smallest ratio that counts", f"{self.factor:g}"),
                    )
                ),
            ),
            changes=instability.clip_changes(norms),
        )


def _histogram(metric: str, norms: FloatArray) -> HistogramEvidence:
    logs = np.log10(norms)
    counts, edges = np.histogram(logs, bins=40)
    tenth = float(np.quantile(norms, 0.9))
    share = float(np.mean(norms > 3 * tenth))
    return HistogramEvidence(
        quantity=metric,
        caption=f"{share:.1%} of the norms exceed three times their 90th percentile.",
        edges=tuple(float(e) for e in 10.0**edges),
        counts=tuple(int(c) for c in counts),
        lines=(Line(value=tenth, label="90th percentile"),),
        log=True,
    )
