"""The rule `ckpt-best-lost`; its page is the docstring of the class."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advisor.finding import Advise, CurveEvidence, FigureEvidence, Finding, Goal, Mark, MissingData
from advisor.rule import Count, Rule, Share
from advisor.space import as_number
from advisor.stats.curve import FEWEST, Rise, point_rise
from advisor.study import Curve, Study, Trial


class CkptBestLost(Rule):
    """The best step of the best trial was not kept in a checkpoint, or a worse one was used.

    ## What it looks at
    The best trial. Where the run noted its checkpoints, the value of the chosen one, else the best of those kept; where it noted
    none, the value at the last step, which is what remains of a run that saves its model at the end. That value must lie above
    the best level of the trial's own curve (the lowest median over a tenth of it) by more than noise: the best of many noisy
    evaluations looks better than it is, so the single best value is no yardstick, and the p-value is multiplied by the number of
    levels to choose from. The next best trials are counted, but where the best one keeps its best step, the study loses nothing.

    ## Why it matters
    The best model of a run is often not its last, above all where validation wanders or rises late. A study ranks trials by
    their best step; without a checkpoint from about there, that result cannot be had again except by training again.

    ## What to do
    Train for a fixed number of steps, keep the few best checkpoints on the way, and choose among them when the run has ended.

    ## How sure
    Confidence is 1 minus the p-value; 1 where the run noted that it kept no checkpoint. Simulated curves that fall and flatten,
    with white or autocorrelated noise (lag-1 correlation up to 0.6), raise a finding in less than 5 % of the studies. A trial
    needs 6 evaluations or more.

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
        top = _read(study, trials[0])
        if top is None:
            raise MissingData(
                f"the best trial has fewer than {FEWEST} evaluations of {study.spec.objective.metric} and noted no checkpoints; "
                "evaluate more often"
            )
        if self._lost(top):
            others = [r for t in trials[1:] if (r := _read(study, t)) is not None and self._lost(r)]
            yield self._report(study, trials, top, [top, *others])

    def _lost(self, reading: _Reading) -> bool:
        return reading.p <= self.false_alarms and reading.share >= self.material

    def _report(self, study: Study, trials: list[Trial], top: _Reading, lost: list[_Reading]) -> Finding:
        metric = study.spec.objective.metric
        best = study.objective_value(top.best)
        message = f"The best trial {top.trial.name} reached {metric} {best:.4g} at step {top.best_step}"
        if top.rise is None:
            message += " but kept no checkpoint"
        else:
            message += f" but has {study.objective_value(top.rise.level):.4g} {top.source} (step {top.step})"
        if not top.noted:
            message += ", and it noted no checkpoints"
        if len(trials) > 1:
            message += f"; {len(lost)} of the {len(trials)} best trials lose their best step"
        lead = study.costs[trials[1].index] - study.costs[trials[0].index] if len(trials) > 1 else math.nan
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
            severity="warning",
            confidence=1 - top.p,
            subject=metric,
            trials=[r.trial for r in lost],
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"What is left of {len(lost)} of the {len(trials)} best trials is not their best step.",
                    trials=tuple(r.trial.id for r in lost),
                    marks=tuple(m for r in lost for m in r.marks()),
                ),
                FigureEvidence(rows=tuple(figures)),
            ),
            changes=(Advise(text=advice),),
        )


@dataclass(frozen=True)
class _Reading:
    trial: Trial
    curve: Curve
    noted: bool
    """Whether the run noted its checkpoints."""
    source: str
    """Where the value that is left comes from."""
    left: int
    """Index of the evaluation that is left; -1 where none is."""
    rise: Rise | None

    @property
    def p(self) -> float:
        """p-value of the loss; 0 where nothing was kept."""
        return 0.0 if self.rise is None else self.rise.p

    @property
    def share(self) -> float:
        """The loss as a share of the curve's range."""
        return 1.0 if self.rise is None else self.rise.share

    @property
    def best(self) -> float:
        """The lowest cost."""
        return float(self.curve.values.min())

    @property
    def best_step(self) -> int:
        return int(self.curve.steps[int(np.argmin(self.curve.values))])

    @property
    def step(self) -> int:
        return int(self.curve.steps[self.left])

    def marks(self) -> Iterator[Mark]:
        yield Mark(trial=self.trial.id, step=self.best_step, label="best")
        if self.rise is not None:
            yield Mark(trial=self.trial.id, step=self.step, label="left")


def _read(study: Study, trial: Trial) -> _Reading | None:
    """What is left of the trial; None where its curve is too short to tell."""
    curve = study.cost_curve(trial).finite
    noted = _checkpoints(trial)
    if noted is None:
        left, source = len(curve) - 1, "at its last step"
    else:
        steps, chosen = noted
        if not steps and chosen is None:
            return _Reading(trial, curve, True, "", -1, None)
        # A checkpoint has the value of the last evaluation up to its step.
        at = np.clip(np.searchsorted(curve.steps, steps if chosen is None else [chosen], side="right") - 1, 0, None)
        left = int(at[np.argmin(curve.values[at])])
        source = "in its best checkpoint" if chosen is None else "in the checkpoint that was chosen"
    rise = point_rise(curve.values, left)
    return None if rise is None else _Reading(trial, curve, noted is not None, source, left, rise)


def _checkpoints(trial: Trial) -> tuple[list[float], float | None] | None:
    """(steps kept, step chosen) as the run noted them; None where it noted none, or nothing that can be read."""
    try:
        noted = json.loads(trial.facts.get("checkpoints", ""))
        steps = [s for entry in noted["kept"] if math.isfinite(s := as_number(entry["step"]))]
        chosen = as_number(noted.get("chosen"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return steps, chosen if math.isfinite(chosen) else None
