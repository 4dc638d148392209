"""The rule `ckpt-best-lost`; its page is the docstring of the class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study, Trial
from advisor.stats.curve import MIN_POINTS
from advisor_rules.pipeline._checkpoints import Left, read_left


class CkptBestLost(Rule):
    """The best step of the best trial was not kept in a checkpoint, or a worse one was used.

    ## What it looks at
    The best trial. Where the run noted its checkpoints, the value of the chosen one, else the best of those kept; where it
    noted none, the value at the last step, which is what remains of a run that saves its model at the end. That value must lie
    above the best level of the trial's own curve (the lowest median over a tenth of it) by more than noise: the best of many
    noisy evaluations looks better than it is, so the single best value is no yardstick, and the p-value is multiplied by the
    number of levels to choose from, and of trials that are as good within noise: the luckiest of them is looked at. The next
    best trials are counted, but where the best one keeps its best step, the study loses nothing.

    ## Why it matters
    The best model of a run is often not its last, above all where validation wanders or rises late. A study ranks trials by
    their best step; without a checkpoint from about there, that result cannot be had again except by training again.

    ## What to do
    Train for a fixed number of steps, keep the few best checkpoints on the way, and choose among them when the run has ended.

    ## How sure
    Confidence is 1 minus the p-value; of a run that noted no checkpoints 0.6 of that, and the finding a note, as it may have kept
    its best step all the same. A trial needs 6 evaluations or more.

    Measured on 200 or more simulated studies each, of 1 to 12 trials with 12 to 200 evaluations. False alarms, on curves that fall
    and flatten: none for white noise and a lag-1 correlation of 0.5, 4 % with 0.8, 2 % with 0.9; on curves that never fall, none
    up to 0.5 and 5 % with 0.8. A single such trial that only wanders, at 0.8 and more, is named in up to 20 % where it has fewer
    than 30 evaluations: its best step is lost indeed, but by luck. Detected, where the end lies 10 or 20 times the
    noise of one evaluation above the best: 25 and 95 % with 10 evaluations, 100 % with 20 or more.

    Example: "The best trial trial-3 reached val/loss 0.356 at step 2800 but has 0.484 at its last step, and it noted no
    checkpoints."
    """

    playbook: ClassVar[str] = "Saving checkpoints and retrospectively selecting the best checkpoint"
    goal: ClassVar[Goal] = "pipeline"

    best: Count = 5
    """How many of the best trials to count."""
    material: Share = 0.02
    """Smallest loss worth a word, as a share of the distance between a curve's highest and lowest level. Our choice."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding, about the best trial."""
        trials = study.ranked()[: self.best]
        if not trials:
            raise MissingData("no trial ended with a finite objective, so there is no best step to keep")
        top = read_left(study, trials[0])
        if top is None:
            raise MissingData(
                f"the best trial has fewer than {MIN_POINTS} evaluations of {study.spec.objective.metric} and noted no checkpoints"
                "; evaluate more often"
            )
        if self._lost(top, _alike(study, top)):
            others = [r for t in trials[1:] if (r := read_left(study, t)) is not None and self._lost(r)]
            yield self._report(study, trials, top, [top, *others])

    def _lost(self, reading: Left, alike: int = 1) -> bool:
        return reading.p * alike <= self.false_alarms and reading.share >= self.material

    def _report(self, study: Study, trials: list[Trial], top: Left, lost: list[Left]) -> Finding:
        metric = study.spec.objective.metric
        best = study.objective_value(top.best)
        message = f"The best trial {top.trial.name} reached {metric} {best:.4g} at {study.at(top.best_step)}"
        if top.rise is None:
            message += " but kept no checkpoint"
        else:
            message += f" but has {study.objective_value(top.rise.level):.4g} {top.source} ({study.at(top.step)})"
        if not top.noted:
            message += ", and it noted no checkpoints: its best step is lost unless it was saved"
        if len(trials) > 1:
            message += f"; {len(lost)} of the {len(trials)} best trials end so"
        lead = (
            float(study.costs[trials[1].index]) - float(study.costs[trials[0].index]) if len(trials) > 1 else math.nan
        )
        figures = [("evaluations of the trial", str(len(top.curve)))]
        if top.rise is not None:
            figures += [
                ("loss against the best level", f"{top.rise.height:.3g} ({top.share:.1%} of the curve's range)"),
                ("loss over its standard error", f"{top.rise.height:.3g} / {top.rise.error:.2g}"),
                ("p-value, corrected for the choice of the step", f"{top.p:.2g} (fires up to {self.false_alarms:g})"),
                ("told from", f"{self.material:.0%} of the curve's range"),
            ]
        if math.isfinite(lead):
            figures.append(("lead of the best trial over the second", f"{lead:.3g}"))
        advice = "Keep the 3 best checkpoints of every run by the objective and choose among them after it has ended."
        return self.finding(
            message + ".",
            action=advice,
            severity="warning" if top.noted else "note",
            confidence=(1 - top.p) * (1.0 if top.noted else 0.6),
            subject=metric,
            trials=[r.trial for r in lost],
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"What is left of {len(lost)} of the {len(trials)} best trials is not their best step.",
                    trials=tuple(r.trial.id for r in lost),
                    marks=tuple(m for r in lost for m in _marks(r)),
                ),
                FigureEvidence(rows=tuple(figures)),
            ),
            changes=(Advise(text=advice),),
        )


def _alike(study: Study, top: Left) -> int:
    """How many trials came as near to the best one's best as its noise reaches: by luck the best of so many is chosen."""
    near = 0.0 if top.rise is None else 2 * top.rise.error
    return int(np.sum(study.costs[study.feasible] <= study.costs[top.trial.index] + near))


def _marks(left: Left) -> Iterator[Mark]:
    yield Mark(trial=left.trial.id, step=left.best_step, label="best")
    if left.rise is not None:
        yield Mark(trial=left.trial.id, step=left.step, label="left")
