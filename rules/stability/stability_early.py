"""The rule `stability-early`."""

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


class StabilityEarly(Rule):
    """The loss rises instead of falling early in training, or stops being a number.

    ## What it looks at
    The first tenth of training, in the trials whose learning rate is up to ten times the best trial's: further above it any
    training is unstable, and that proves nothing. A trial is unstable early if its loss turns NaN or infinite there for good, or if
    it rises above its first value, beyond the noise of that value and of the minibatches after it, for ten steps (one point where
    fewer were logged), and by at least a tenth of what the whole training gains. The loss is that of the training batches, else an
    evaluated one. Recovery does not excuse it. A loss that never moves is not unstable, nor is a first step of Adam that overshoots
    and is back within ten.

    ## Why it matters
    Instability is what keeps the learning rate below what the problem could bear. A run that blows up early and recovers then
    trains slowly and looks healthy in evaluations thousands of steps apart. Nothing else in the study is worth tuning before.

    ## What to do
    Warm the learning rate up from zero: search the number of warmup steps over orders of magnitude, up to a tenth of the training,
    and check each with a probe of 500 steps at twice the best learning rate, logging every step. If that is not enough, clip
    gradients, then try another optimizer. A lower learning rate is the last resort.

    ## How sure
    Noise is read off the run itself: an exponential tail of its own scale for the highest level, a t-distribution for the first
    value; the level is shared among the trials judged. Confidence is one minus that p-value times the number of trials. Measured
    false alarms: see ALARMS.

    *Example:* "The loss of trial-3 at lr 0.3, 3 times the best trial's, rose from 2.31 to 7.9 at step 40 instead of falling."
    """

    playbook: ClassVar[str] = "How can optimization failures be debugged and mitigated?"
    goal: ClassVar[Goal] = "stability"

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
        seen = [s for t in near.trials[: self.trials] if (s := self._look(study, t)) is not None]
        unstable = [s for s in seen if s.p * len(seen) <= self.false_alarms]
        if not unstable:
            _assess(seen)
            return
        worst = min(unstable, key=lambda s: (s.p, -s.height))
        which = [s.trial for s in unstable]
        others = f"; so did {len(which) - 1} more of the {len(seen)} trials judged" if len(which) > 1 else ""
        bound = f"up to {self.reach:g} times the best" if math.isfinite(near.best) else "all"
        yield self.finding(
            f"The loss of {worst.trial.name}{near.rate(worst.trial)} {worst.said}{others}.",
            action="Warm the learning rate up, over as few steps as train stably; lower the learning rate only as a last resort.",
            severity="warning" if near.spare(which) else "critical",
            confidence=min(1 - worst.p * len(seen), 0.99),
            trials=which,
            evidence=(
                CurveEvidence(
                    metrics=(worst.metric,),
                    caption=f"The loss of {worst.trial.name} {worst.said}.",
                    trials=tuple(t.id for t in which[:5]),
                    marks=(Mark(trial=worst.trial.id, step=worst.step, label="unstable"),),
                    lines=(Line(value=worst.limit, label="limit of noise"),) if math.isfinite(worst.limit) else (),
                ),
                FigureEvidence(
                    rows=(
                        (
                            "trials judged",
                            f"{len(seen)} (learning rates: {bound}), of which {len(which)} unstable early",
                        ),
                        ("points early in training", f"{worst.points}"),
                        ("first loss, highest level, limit of noise", worst.figures),
                        ("p-value, over all trials judged", f"{min(worst.p * len(seen), 1):.2g}"),
                        (
                            "thresholds",
                            f"p {self.false_alarms:g}, rise {self.material:.0%} of the gain, {self.lasting} steps",
                        ),
                    )
                ),
            ),
            changes=(*instability.warmup_changes(study), instability.probe_advice(near.best)),
        )

    def _look(self, study: Study, trial: Trial) -> _Seen | None:
        """What the trial's start shows; None if it logged nothing of its loss."""
        curves = instability.loss_curves(study, trial)
        if not curves:
            return None
        end = instability.early_end(study, trial)
        dense = [(n, c) for n, c in curves if np.searchsorted(c.finite.steps, end, side="right") >= _FEWEST]
        metric, curve = (dense or curves)[0]
        finite = curve.finite
        early = int(np.searchsorted(finite.steps, end, side="right"))
        start = int(np.searchsorted(finite.steps, min(end, instability.PROBE_STEPS), side="right"))
        seen = _Seen(trial, metric, start if start >= _FEWEST else 0)
        at = instability.diverged_step(study, trial)
        if at is not None and len(finite) and instability.diverged_early(study, trial, at):
            first = float(finite.values[0])
            return _Seen(
                trial, metric, early, 0.0, at, math.inf, f"was {first:.4g} at first and not finite from step {at:,} on"
            )
        if not dense:
            return seen
        lasting = min(self.lasting, max(int(end - finite.steps[0]) // 5, 1))
        width = int(np.count_nonzero(finite.steps[1:early] <= finite.steps[0] + lasting))
        rise = jumps.early_rise(finite.values, early, max(width, 1))
        if rise is None or rise.share < self.material:
            return seen
        step = int(finite.steps[rise.index])
        said = f"rose from {rise.start:.4g} to {rise.level:.4g} at step {step:,} instead of falling"
        figures = f"{rise.start:.4g}, {rise.level:.4g}, {rise.limit:.4g}"
        return _Seen(trial, metric, early, rise.p, step, rise.level - rise.start, said, figures, rise.limit)


_FEWEST = 3
"""Points early in training that show a rise: the first, and two after it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    trial: Trial
    metric: str
    points: int
    """Early in training, within the probe's steps; 0 where they are too few to show an instability that recovers."""
    p: float = 1.0
    step: int = 0
    height: float = 0.0
    said: str = ""
    figures: str = "not finite"
    limit: float = math.nan


def _assess(seen: list[_Seen]) -> None:
    """Raise MissingData if no trial logged enough of its start to be called stable."""
    if any(s.points for s in seen):
        return
    what = (
        "no trial logged a loss" if not seen else f"no trial logged {_FEWEST} losses in the first tenth of its training"
    )
    raise MissingData(f"{what}; log the training loss at every step of the first {instability.PROBE_STEPS}")
