"""The rule `clip-insufficient`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.batch.throughput import readable
from advisor.computed.stability import clipping, instability, loss_blowups
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Advise, Change
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import jumps


class ClipInsufficient(Rule):
    """Gradients are clipped, and training is unstable all the same.

    ## What it looks at
    Trials that clip the norm of their gradients and whose learning rate is up to ten times the best trial's: whether their loss
    rises or diverges at the start, or jumps up later, by the tests of `stability-early` and `stability-mid`; or whether outliers of
    the gradient norm, as `stability-spikes` finds them, mostly pass below the threshold. Outliers that are clipped do no harm.

    ## Why it matters
    A threshold that is too high only looks like a remedy: the large gradients that it should stop go through.

    ## What to do
    Lower the threshold, to the 90th percentile of the norms before clipping or below, and tune it around there. Where more than
    half of the updates are clipped already, clipping is not what is missing: warm up longer, or lower the learning rate.

    ## How sure
    The tests share the promised level among the trials and the ways of being unstable; confidence is one minus the p-value of the
    surest. Of 100 simulated studies each of 1 to 6 trials whose losses fall and whose norms are log-normal, none fired.

    *Example:* "The loss of trial-3 at lr 0.3 jumped from 2.9 to 8.1 at step 29,400, which undid 74 % of what it had fallen, though
    gradients are clipped at a norm of 10."
    """

    playbook: ClassVar[str] = "Gradient clipping"
    goal: ClassVar[Goal] = "stability"

    reach: Factor = 10.0
    """Times the best trial's learning rate up to which trials are judged: the playbook looks at 5 and 10 times."""
    trials: Count = 64
    """How many trials to judge at most, those with learning rates nearest to the best first."""
    lasting: Count = 10
    """Steps for which a loss must stay high at the start; as in `stability-early`."""
    material: Share = 0.1
    """Smallest rise or jump, as a share of what training gained; as in `stability-early` and `stability-mid`."""
    factor: Factor = 3.0
    """Smallest ratio of an outlier to the running median of the norm; as in `stability-spikes`."""
    extreme: Share = 0.5
    """Share of clipped updates above which a smaller threshold is no remedy: the playbook's number."""
    false_alarms: Share = 0.05
    """How often, per study, stable trials may raise a finding: half of it for losses, half for norms."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        near = instability.within_reach(study, self.reach)
        known = [c for t in near.trials[: self.trials] if (c := clipping.of(study, t)) is not None]
        if not known:
            raise MissingData(
                "no trial says at which gradient norm it clips; log the threshold as grad_clip_norm (the advisor's training hook "
                "does)"
            )
        clipped = [c for c in known if math.isfinite(c.threshold) or c.share > 0]
        if not clipped:
            return
        level = self.false_alarms / 2
        unrest = loss_blowups.unrest(
            study, [c.trial for c in clipped], lasting=self.lasting, material=self.material, false_alarms=level
        )
        spikes = [
            s
            for c in clipped
            if (s := clipping.passing_outliers(study, c, level / len(clipped), self.factor)) is not None
        ]
        if not unrest.seen and not any(math.isfinite(c.threshold) and study.has("grad_norm") for c in clipped):
            raise MissingData(
                f"no trial that clips logged {jumps.MIN_POINTS} losses or gradient norms; log both at every step, the norm before "
                "clipping"
            )
        if unrest.unstable:
            worst, many = unrest.unstable[0], len(unrest.unstable)
            chosen = next(c for c in clipped if c.trial == worst.trial)
            said = f"The {worst.subject} of {worst.trial.name}{near.rate(worst.trial)} {worst.said}"
            yield self._finding(study, chosen, said, (worst.metric, worst.step), unrest.p, (many, len(clipped)))
        elif spikes:
            chosen, found, step = max(spikes, key=lambda s: s[1].largest)
            said = (
                f"The gradient norm of {chosen.trial.name}{near.rate(chosen.trial)} reaches {found.largest:.3g} times"
            )
            p, where = min(found.p * 2 * len(clipped), 1.0), (study.signals["grad_norm"], step)
            yield self._finding(study, chosen, f"{said} its running median", where, p, (len(spikes), len(clipped)))

    def _finding(
        self,
        study: Study,
        chosen: clipping.Clipping,
        said: str,
        where: tuple[str, int],
        p: float,
        unstable: tuple[int, int],
    ) -> Finding:
        """`where`: metric and step of it; `unstable`: how many trials are, of how many that clip."""
        (metric, step), (many, of) = where, unstable
        at = f" at a norm of {readable(chosen.threshold)}" if math.isfinite(chosen.threshold) else ""
        others = f"; {many} of the {of} trials that clip are unstable" if many > 1 else ""
        norms = clipping.unclipped_norms(study, [chosen])
        tip = "Warm the learning rate up longer, or lower it: more than half of the updates are clipped already."
        changes: tuple[Change, ...] = (Advise(text=tip),)
        if not chosen.share > self.extreme:
            lower = min(float(np.quantile(norms, 0.9)) if len(norms) else math.inf, chosen.threshold / 3)
            tip = (
                f"Clip at a smaller norm, {lower:.3g} to begin with."
                if math.isfinite(lower)
                else "Clip at a smaller norm."
            )
            changes = (Advise(text=tip),)
            if math.isfinite(chosen.threshold):
                changes = instability.clip_lower_changes(chosen.threshold, norms)
        lines = (Line(value=chosen.threshold, label="clipped from here on"),) if "norm" in metric and at else ()
        return self.finding(
            f"{said}, though gradients are clipped{at}{others}.",
            action=tip,
            severity="warning",
            confidence=min(1 - p, 0.99),
            trials=[chosen.trial],
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"{chosen.trial.name} is unstable in spite of clipping{at}.",
                    trials=(chosen.trial.id,),
                    marks=(Mark(trial=chosen.trial.id, step=step, label="unstable"),),
                    lines=lines,
                ),
                FigureEvidence(
                    rows=(
                        ("trials that clip", f"{of}, of which {many} unstable"),
                        ("share of clipped updates", f"{chosen.share:.1%}" if chosen.points else "unknown"),
                        ("p-value, over all trials judged", f"{p:.2g}"),
                        (
                            "thresholds",
                            f"p {self.false_alarms:g}, {self.material:.0%} of the gain, norms {self.factor:g}-fold",
                        ),
                    )
                ),
            ),
            changes=changes,
        )
