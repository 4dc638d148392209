"""The rule `curve-step-variance`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.curves.step_noise import FEWEST, Around, Luck, around_best, ranking_luck, remedy
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, Evidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.study import Study, Trial
from advisor.stats.curve import change_since

_DISTINCT = 1.96 * 2**0.5
"""Two single values with the same noise differ at 95 % confidence from this many standard deviations on."""


class CurveStepVariance(Rule):
    """Validation jumps so much from one evaluation to the next that the order of the best trials is luck of the step.

    ## What it looks at
    The half of each of the best trials' curves around its best step, taken apart into a smooth course and noise. All evaluations
    are drawn again 500 times from both, and the best step is chosen again in each draw. The rule fires where another trial wins
    in most draws and most of the variance between the best trials' values is noise. Of a single trial it can only tell how far
    two trials would have to differ to be told apart, as a share of what training gained.

    ## Why it matters
    Each trial ends on a lucky or an unlucky step: hyperparameters get compared by chance, and production training will not end on
    the same lucky step as the study did.

    ## What to do
    Decay the learning rate if it is constant; where training jumps along with validation, average the weights of late steps or
    raise the batch size; where it does not, the validation set is too small.

    ## How sure
    Confidence is the share of draws that another trial wins; of a single trial, how sure its noise exceeds the limit. Noise is
    read at the lowest of three estimates, so that a bend of a curve does not pass for it. A trial needs 10 evaluations or more.

    Measured on simulated studies of curves with 50 evaluations. False alarms, where trials lie 2 or more standard deviations of
    the noise apart: at most 1 % with 2, 5 or 20 trials. Detected, where trials are equal and only noise ranks them: 29 % with
    2 trials, 67 % with 5, 79 % with 20.

    Example: "Around the best steps of the 5 best trials, val/accuracy jumps by 0.004 (standard deviation) from one evaluation to
    the next, while their best values lie within 0.006: the best trial, trial-3, would keep its place in 31% of repeats."
    """

    playbook: ClassVar[str] = "Examining the training curves"
    goal: ClassVar[Goal] = "efficiency"

    best: Count = 5
    """How many of the best trials to compare."""
    keeps: Share = 0.5
    """The best trial counts as chosen by luck where it would win in a smaller share of the draws. Ours: more likely than not."""
    reliable: Share = 0.5
    """The order counts as blurred where a smaller share of the variance between the best trials is real. Ours: mostly noise."""
    blur: Share = 0.05
    """Of a single trial: the smallest difference that can be told from noise, as a share of the gain, that is still fine. Ours."""
    constant: Share = 0.5
    """The learning rate counts as not decayed where it ends above this share of its peak."""
    false_alarms: Share = 0.05
    """How often chance alone may raise a finding on a single trial."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding, about the objective."""
        trials = study.ranked()[: self.best]
        if not trials:
            raise MissingData("no trial ended with a finite objective, so there is nothing to compare")
        parts = [(t, a) for t in trials if (a := around_best(study.cost_curve(t).finite.values)) is not None]
        if not parts or parts[0][0] != trials[0] or len(parts) < min(2, len(trials)):
            raise MissingData(
                f"the best trials have fewer than {FEWEST} evaluations of {study.spec.objective.metric}; evaluate more often"
            )
        if len(trials) == 1:
            yield from self._single(study, *parts[0])
            return
        if len({float(study.costs[t.index]) for t, _ in parts}) == 1:
            raise MissingData(
                f"the {len(parts)} best trials all have the same best {study.spec.objective.metric}, so there is no order to "
                "judge; check that the training uses the hyperparameters, or measure more finely"
            )
        luck = ranking_luck([a for _, a in parts])
        if luck.noise > 0 and luck.keeps < self.keeps and luck.reliability < self.reliable:
            yield self._several(study, [t for t, _ in parts], luck)

    def _several(self, study: Study, trials: list[Trial], luck: Luck) -> Finding:
        metric = study.spec.objective.metric
        gap = float(study.costs[trials[-1].index]) - float(study.costs[trials[0].index])
        message = (
            f"Around the best steps of the {len(trials)} best trials, {metric} jumps by {luck.noise:.2g} (standard deviation) "
            f"from one evaluation to the next, while their best values lie within {gap:.2g}: the best trial, {trials[0].name}, "
            f"would keep its place in {luck.keeps:.0%} of repeats."
        )
        rows = (
            ("trials compared", str(len(trials))),
            ("noise from one evaluation to the next", f"{luck.noise:.3g}"),
            ("noise of a trial's best value", f"{luck.spread:.3g}"),
            ("repeats in which the best trial wins", f"{luck.keeps:.0%} of 500 draws (fires below {self.keeps:.0%})"),
            ("variance between trials that is real", f"{luck.reliability:.0%} (fires below {self.reliable:.0%})"),
        )
        return self._report(study, trials, message, 1 - luck.keeps, rows, "warning")

    def _single(self, study: Study, trial: Trial, part: Around) -> Iterator[Finding]:
        curve = study.cost_curve(trial).finite
        learned = change_since(curve.values, 0)
        gain = float(curve.values[: int(np.argmin(curve.values)) + 1].max()) - float(curve.values.min())
        if learned is None or learned.p_fall > self.false_alarms or gain <= 0:
            raise MissingData(
                "the only feasible trial did not improve beyond noise; compare noise with two trials or more"
            )
        sure = part.chance_above(self.blur * gain / _DISTINCT)
        if sure < 1 - self.false_alarms:
            return
        metric, needed = study.spec.objective.metric, _DISTINCT * part.noise
        message = (
            f"In the only feasible trial, {trial.name}, {metric} jumps by {part.noise:.2g} (standard deviation) from one "
            f"evaluation to the next, so that trials can only be told apart when they differ by {needed:.2g}, {needed / gain:.0%} "
            f"of all that training gained."
        )
        rows = (
            ("evaluations around the best step", str(len(part.course))),
            ("noise from one evaluation to the next", f"{part.noise:.3g}"),
            (
                "smallest difference told at 95 % confidence",
                f"{needed:.3g} ({needed / gain:.1%} of the gain, limit {self.blur:.0%})",
            ),
            ("confidence that the noise exceeds the limit", f"{sure:.1%} (fires from {1 - self.false_alarms:.0%})"),
        )
        yield self._report(study, [trial], message, sure, rows, "note")

    def _report(
        self,
        study: Study,
        trials: list[Trial],
        message: str,
        confidence: float,
        rows: tuple[tuple[str, str], ...],
        severity: Severity,
    ) -> Finding:
        metric = study.spec.objective.metric
        change, cause = remedy(study, trials, constant=self.constant)
        best = study.objective_value(float(study.costs[trials[0].index]))
        evidence: tuple[Evidence, ...] = (
            CurveEvidence(
                metrics=(metric,),
                caption=f"Late evaluations of {metric} scatter as widely as the best trials differ.",
                trials=tuple(t.id for t in trials),
                lines=(Line(value=best, label="best value"),),
            ),
            FigureEvidence(rows=(*rows, ("likely cause", cause))),
        )
        return self.finding(
            message,
            action=change.text if isinstance(change, Advise) else "Decay the learning rate to zero over the training.",
            severity=severity,
            confidence=confidence,
            subject=metric,
            trials=trials,
            evidence=evidence,
            changes=(change,),
        )
