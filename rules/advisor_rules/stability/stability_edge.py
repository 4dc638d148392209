"""The rule `stability-edge`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.computed.space import failures, settings
from advisor.computed.stability import instability, loss_blowups
from advisor.engine.rule import Count, Factor, Relation, Rule, Settled, Share
from advisor.model.change import Change, RunPlan, SetRange
from advisor.model.evidence import AxisEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial
from advisor.stats import outliers


class StabilityEdge(Rule):
    """The best learning rate lies right at the edge of what trains at all.

    ## What it looks at
    The lowest learning rate from which nearly all trials diverged or learned nothing, and how far below it the best trial's lies:
    within a factor of four, or as the next one tried, within a factor of ten. Trials that crashed or ran out of memory are left
    out. Where the best learning rate lies far below the edge, instability costs nothing: any training is unstable at some rate.

    ## Why it matters
    The workload would perhaps train better at a higher learning rate, and instability forbids it. A study that is merely moved
    towards lower rates hides the problem and keeps the loss.

    ## What to do
    Make training stable, then search higher learning rates. First a short study of its own finds the fewest warmup steps that allow
    a peak of ten times the unstable rate, from 10 to a tenth of the training (`warmup-shortest` reads it). Where losses were logged
    too rarely to see how training starts, a run of 500 steps at twice the best rate comes before that. Trials that blow up in mid
    training only want clipping, see `stability-spikes`. Lowering the learning rate is the last resort.

    ## How sure
    Failed, best and other trials are rearranged over the learning rates that were tried; the p-value is how often as many failures
    then lie beyond an edge with the best trial next to it. Confidence is one minus it. With one failure, five trials are the fewest
    that can show anything. 300 simulated studies a design, in which failures had nothing to do with the learning rate, gave 5 % or
    less.

    *Example:* "The best learning_rate, 0.16, lies a factor 1.6 below 0.25, from where 2 of 2 trials fail."
    """

    playbook: ClassVar[str] = "Identifying unstable workloads"
    goal: ClassVar[Goal] = "stability"
    probes: ClassVar[frozenset[str]] = frozenset({"learning-rate", "early-instability"})
    before_exploitation: ClassVar[Settled | None] = "not-fired"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "space-boundary-infeasible",
                "space-infeasible",
                "space-boundary",
            ),
            shares="end",
            because="Instability draws this line in the space: once training is stable, it lies elsewhere.",
        ),
        Relation(
            rules=(
                "stability-early",
                "stability-mid",
                "stability-spikes",
            ),
            shares="trials",
            because="These are the trials that draw the line; this is how they fail.",
            waits=False,
        ),
    )

    purity: Share = 0.8
    """Share of the trials from the edge on that must have failed: nearly all."""
    factor: Factor = 4.0
    """How far below the edge the best learning rate may lie; two of the doublings that the playbook's probe takes."""
    next: Factor = 10.0
    """How far, if no trial that worked lies between: an order of magnitude."""
    raise_to: Factor = 10.0
    """Times the unstable learning rate that warmup should make possible; the playbook's default, and 100 its second try."""
    lasting: Count = 10
    """Steps for which a loss must stay high at its start; as in `stability-early`."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the learning rate."""
        found = instability.learning_rates(study)
        if found is None:
            raise MissingData("no learning rate was varied among the trials; try some above and below the present one")
        name, rates = found
        tried = settings.read(study)
        crashed = failures.failures(study).crashed
        rows = [i for i, group in enumerate(tried.trials) if not all(crashed[t.index] for t in group)]
        logs = np.log10([rates[tried.trials[i][0].index] for i in rows])
        failed, costs = tried.failed[rows], tried.costs[rows]
        if len(rows) < 4 or failed.all():
            fine = int((~failed).sum())
            raise MissingData(
                f"{len(rows)} settings ended without a crash, {fine} of them with a result; it takes 4, and 1 with a result"
            )
        near = np.log10([[self.factor, self.next]])
        best = int(np.nanargmin(costs))
        for region in outliers.regions(
            logs[:, None], failed, purity=self.purity, best=best, near=near, sides=(("high",),)
        ):
            if region.p <= self.false_alarms:
                yield self._finding(
                    study, name, (10 ** float(logs[best]), 10**region.edge), region, tried.trials[rows[best]][0].id
                )

    def _finding(
        self, study: Study, name: str, rates: tuple[float, float], region: outliers.Region, best_id: str
    ) -> Finding:
        best, edge = rates
        said = f"{edge:.3g}, from where {region.failed} of {region.total} settings fail"
        low, high = float(f"{best / 2:.3g}"), float(f"{self.raise_to * edge:.3g}")
        why = f"Once training is stable, rates up to {self.raise_to:g} times {edge:.3g} may train; as it is {edge:.3g} fails"
        higher = SetRange(parameter=name, low=low, high=high, scale="log", why=why)
        failing = failures.failures(study).any
        which = [t for t in study.trials if t.id == best_id or (failing[t.index] and math.isfinite(best))]
        below = f"a factor {edge / best:.2g} below" if edge > 1.1 * best else "right below"
        return self.finding(
            f"The best {name}, {best:.3g}, lies {below} {said}.",
            action=f"Make training stable, by a warmup first, then search {name} up to {high:g}; lowering it is the last resort.",
            severity="critical",
            confidence=1 - region.p,
            subject=name,
            side="high",
            trials=[t for t in which if t.id == best_id] + [t for t in which if t.id != best_id],
            evidence=(
                AxisEvidence(
                    parameter=name,
                    caption=f"The best trial lies right below {said}.",
                    trials=(best_id,),
                    lines=(Line(value=edge, label="unstable from here on"),),
                    next_low=low,
                    next_high=high,
                ),
                FigureEvidence(
                    rows=(
                        ("best learning rate", f"{best:.3g}"),
                        ("lowest unstable learning rate", f"{edge:.3g}"),
                        ("failed from there on", f"{region.failed} of {region.total}, limit {self.purity:.0%}"),
                        ("chance of the same", f"{region.p:.2g}, limit {self.false_alarms:g}"),
                    )
                ),
            ),
            changes=self._remedy(study, [t for t in which if t.id != best_id], edge, higher),
        )

    def _remedy(self, study: Study, failed: Sequence[Trial], edge: float, higher: SetRange) -> tuple[Change, ...]:
        """What mends the kind of instability that the failed trials show; a look at their start where they show none."""
        starts = [b for t in failed if (b := loss_blowups.at_start(study, t, self.lasting)) is not None]
        jumps = [b for t in failed if (b := loss_blowups.in_mid_training(study, t)) is not None]
        early, mid = (any(b.p <= self.false_alarms and b.share > 0 for b in seen) for seen in (starts, jumps))
        if mid and not early:
            return (*instability.clip_changes(instability.late_norms(study, study.trials)), higher)
        if not early and not any(b.points for b in starts):
            why = f"Trials fail from {edge:.3g} on, and their losses are too sparse to see how they start"
            return (RunPlan(plan="probe-early", parameter=higher.parameter, why=why),)
        return (*instability.warmup_changes(edge, self.raise_to), higher)
