"""The rule `stability-mid`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advisor.finding import CurveEvidence, FigureEvidence, Finding, Goal, Line, Mark, MissingData
from advisor.rule import Count, Factor, Rule, Share
from advisor.stats import instability, jumps
from advisor.study import Study, Trial


class StabilityMid(Rule):
    """The loss jumps up suddenly in mid training, after it had fallen steadily.

    ## What it looks at
    The training loss (where it was not logged often enough, the validation loss or the objective) after the first tenth of
    training, in the trials whose learning rate is up to ten times the best trial's. A jump is a rise from one level, a median over
    some points, to the next. It lasts for two points or more, is larger than the same curve's moves ever are by chance, and undoes
    at least a tenth of what the loss had fallen. A loss that turns NaN or infinite for good after it had fallen counts too. A
    single odd minibatch, slow overfitting, a loss that always fluctuates, and a jump where the logged learning rate was raised do
    not.

    ## Why it matters
    The steps until the loss has recovered are lost, often the run is. What goes wrong is usually a few outlying gradients.

    ## What to do
    Clip gradients, with the 90th percentile of the unclipped norms as the first threshold, and tune it around there. If the norm
    was not logged, log it first. A longer warmup mends some jumps that clipping does not.

    ## How sure
    The bulk of the moves of the same curve, over windows of 2, 6 and 18 points, is continued by an exponential tail; the largest of
    all moves of all trials judged passes the limit with the promised probability. Confidence is one minus that p-value. Where the
    learning rate was not logged, a restart of its schedule cannot be told from a jump. Measured false alarms: see ALARMS.

    *Example:* "The loss of trial-3 jumped from 2.9 to 8.1 at step 29,400, which undid 74 % of what it had fallen."
    """

    playbook: ClassVar[str] = "How can optimization failures be debugged and mitigated?"
    goal: ClassVar[Goal] = "stability"

    reach: Factor = 10.0
    """Times the best trial's learning rate up to which trials are judged: the playbook looks at 5 and 10 times."""
    trials: Count = 64
    """How many trials to judge at most, those with learning rates nearest to the best first."""
    material: Share = 0.1
    """Smallest jump, as a share of what the loss had fallen before; of its logarithm where it had fallen tenfold."""
    false_alarms: Share = 0.05
    """How often, per study, noise alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        near = instability.within_reach(study, self.reach)
        seen = [s for t in near.trials[: self.trials] if (s := self._look(study, t)) is not None]
        if not seen:
            raise MissingData(
                f"no trial logged {jumps.FEWEST} losses or evaluations; log the training loss, and the gradient norm, at every step"
            )
        unstable = [s for s in seen if s.p * len(seen) <= self.false_alarms and s.share >= self.material]
        if not unstable:
            return
        rank = {t.index: i for i, t in enumerate(study.ranked())}
        worst = min(unstable, key=lambda s: (s.p > 1e-6, -s.share, s.trial.index))
        best = min(rank.get(s.trial.index, len(study.trials)) for s in unstable)
        p = min(worst.p * len(seen), 1.0)
        others = f"; so did {len(unstable) - 1} more of the {len(seen)} trials judged" if len(unstable) > 1 else ""
        norms = instability.norms_after_start(study, [s.trial for s in unstable])
        clip = f" at a norm of {np.quantile(norms, 0.9):.3g}, the 90th percentile" if len(norms) >= jumps.FEWEST else ""
        action = f"Clip gradients{clip}, and tune the threshold around it." if clip else instability.LOG_NORM
        norm = _norm_there(study, worst)
        yield self.finding(
            f"The {worst.what} of {worst.trial.name}{near.rate(worst.trial)} {worst.said}{others}.",
            action=action,
            severity="critical" if best < 3 or not near.spare([s.trial for s in unstable]) else "warning",
            confidence=min(1 - p, 0.99),
            trials=[s.trial for s in unstable],
            evidence=(
                CurveEvidence(
                    metrics=(worst.metric, *([study.signals["grad_norm"]] if norm else [])),
                    caption=f"The {worst.what} of {worst.trial.name} {worst.said}.",
                    trials=tuple(s.trial.id for s in unstable[:5]),
                    marks=tuple(Mark(trial=s.trial.id, step=s.step, label="jump") for s in unstable[:5]),
                    lines=(Line(value=worst.limit, label="limit of noise"),) if math.isfinite(worst.limit) else (),
                ),
                FigureEvidence(
                    rows=(
                        ("trials judged", f"{len(seen)}, of which {len(unstable)} unstable"),
                        ("points judged", f"{worst.points:,} of {worst.trial.name}"),
                        ("p-value, over all trials judged", f"{p:.2g}"),
                        ("gradient norm there, over its running median", f"{norm:.3g}" if norm else "not logged"),
                        ("thresholds", f"p {self.false_alarms:g}, {self.material:.0%} of the fall"),
                    )
                ),
            ),
            changes=instability.clip_changes(study, norms),
        )

    def _look(self, study: Study, trial: Trial) -> _Seen | None:
        """The trial's largest jump; None if its curves are too short to judge."""
        curves = instability.loss_curves(study, trial)
        at = instability.diverged_step(study, trial)
        if at is not None and not instability.diverged_early(study, trial, at):
            for metric, curve in curves:
                before = curve.finite.values[curve.finite.steps < at]
                if len(before) >= _FEWEST_BEFORE and float(np.median(before[-3:])) < before[0]:
                    what = "objective" if metric == study.spec.objective.metric else "loss"
                    said = f"was not finite from step {at:,} on, after it had improved"
                    return _Seen(trial, metric, what, len(curve), 0.0, math.inf, at, said)
        for metric, curve in curves:
            finite = curve.finite
            if len(finite) < jumps.FEWEST:
                continue
            first = int(np.searchsorted(finite.steps, instability.early_end(study, trial), side="right"))
            allowed = instability.steady(study, trial, finite.steps.astype(np.float64))
            jump = jumps.largest_jump(finite.values, first, allowed)
            objective = metric == study.spec.objective.metric
            what = "objective" if objective else "loss"
            if jump is None:
                return _Seen(trial, metric, what, len(finite))
            sign = -1.0 if objective and not study.minimize else 1.0
            step = int(finite.steps[jump.index])
            of = "of its logarithm's fall" if jump.log else "of what it had gained"
            levels = f"{sign * jump.before:.4g} to {sign * jump.after:.4g}"
            said = f"jumped from {levels} at step {step:,}, which undid {jump.share:.0%} {of}"
            return _Seen(
                trial,
                metric,
                what,
                len(finite),
                jump.p,
                jump.share,
                step,
                said,
                sign * jump.limit if jump.limit else math.nan,
            )
        return None


_FEWEST_BEFORE = 5
"""Points before a divergence that show that the loss had fallen."""


@dataclass(frozen=True, slots=True)
class _Seen:
    trial: Trial
    metric: str
    what: str
    points: int
    p: float = 1.0
    share: float = 0.0
    step: int = 0
    said: str = ""
    limit: float = math.nan


def _norm_there(study: Study, seen: _Seen) -> float | None:
    """The largest ratio of the gradient norm to its running median in the five logged points around the jump."""
    curve = study.peaks(seen.trial, "grad_norm").finite
    keep = curve.values > 0
    found = jumps.outliers(curve.values[keep], 0.5, 1.0)
    if found is None:
        return None
    at = int(np.searchsorted(curve.steps[keep], seen.step))
    around = found.ratios[max(at - 3, 0) : at + 2]
    return float(around.max()) if len(around) else None
