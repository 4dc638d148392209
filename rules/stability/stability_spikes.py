"""The rule `stability-spikes`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advisor.finding import CurveEvidence, FigureEvidence, Finding, Goal, HistogramEvidence, Line, Mark, MissingData
from advisor.rule import Count, Factor, Rule, Share
from advisor.space import FloatArray
from advisor.stats import instability, jumps
from advisor.study import Curve, Study, Trial


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
    The limit continues the bulk of the logarithms of the ratios by an exponential tail, so that the largest of all points of all
    trials judged passes it with the promised probability; healthy norms are about log-normal, whose tail is lighter. Confidence
    is one minus the p-value of the largest ratio. Measured false alarms: see ALARMS.

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
        curves = [(t, _after_start(study, t)) for t in near.trials[: self.trials]]
        curves = [(t, c) for t, c in curves if len(c) >= jumps.FEWEST]
        if not curves:
            short = study.has("grad_norm")
            what = (
                f"no trial logged {jumps.FEWEST} gradient norms after its start"
                if short
                else "no gradient norm was logged"
            )
            raise MissingData(
                f"{what}; log the norm before clipping at every step as train/grad_norm, which the advisor's training hook does"
            )
        chance = self.false_alarms / len(curves)
        judged = [
            _Spikes(t, c, o) for t, c in curves if (o := jumps.outliers(c.values, chance, self.factor)) is not None
        ]
        spiky = [s for s in judged if len(s.found.indices)]
        if not spiky:
            return
        worst = max(spiky, key=lambda s: (len(s.found.indices), s.largest))
        norms = instability.norms_after_start(study, [s.trial for s in spiky])
        p = min(1.0, worst.found.p * len(curves))
        tenth = float(np.quantile(norms, 0.9))
        metric = study.signals["grad_norm"]
        count, all_ = len(worst.found.indices), len(worst.curve)
        points = "point" if count == 1 else "points"
        others = f"; so do those of {len(spiky) - 1} more of the {len(curves)} trials judged" if len(spiky) > 1 else ""
        yield self.finding(
            f"The gradient norm of {worst.trial.name}{near.rate(worst.trial)} exceeds {worst.floor(self.factor):.2g} times its "
            f"running median at {count} of {all_:,} logged {points}, at most {worst.largest:.3g}-fold{others}.",
            action=f"Clip gradients at a norm of {tenth:.3g}, the 90th percentile, and tune the threshold around it.",
            severity="warning",
            confidence=min(1 - p, 0.99),
            subject=metric,
            trials=[s.trial for s in spiky],
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"The norm of {worst.trial.name} leaves its running median {count} times.",
                    trials=tuple(s.trial.id for s in spiky[:5]),
                    marks=tuple(
                        Mark(
                            trial=worst.trial.id,
                            step=int(worst.curve.steps[i]),
                            label=f"{worst.found.ratios[i]:.3g}-fold",
                        )
                        for i in worst.found.indices[:5]
                    ),
                ),
                _histogram(metric, norms),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(curves)}, of which {len(spiky)} with outliers"),
                        (
                            "norms judged",
                            f"{all_:,} of {worst.trial.name}, after the first {instability.EARLY:.0%} of its steps",
                        ),
                        ("largest ratio to the running median", f"{worst.largest:.3g}"),
                        ("ratio that chance explains", f"{worst.found.limit:.3g}, with probability {chance:.2g}"),
                        ("p-value, over all trials judged", f"{p:.2g}"),
                        ("smallest ratio that counts", f"{self.factor:g}"),
                    )
                ),
            ),
            changes=instability.clip_changes(study, norms),
        )


@dataclass(frozen=True, slots=True)
class _Spikes:
    trial: Trial
    curve: Curve
    found: jumps.Outliers

    @property
    def largest(self) -> float:
        return float(self.found.ratios.max())

    def floor(self, factor: float) -> float:
        """The ratio from which a point counts."""
        return max(factor, self.found.limit)


def _after_start(study: Study, trial: Trial) -> Curve:
    """The largest norm of each logged window after early training; finite and positive."""
    curve = study.peaks(trial, "grad_norm").finite
    if not len(curve):
        return curve
    keep = (curve.steps > instability.EARLY * curve.steps[-1]) & (curve.values > 0)
    return Curve(curve.steps[keep], curve.values[keep], curve.times[keep])


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
