"""The rule `eval-sample-skew`; its page is the docstring of the class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats.heterogeneity import p_of_mean
from advisor_rules.pipeline._eval_samples import Pairs, pairs


class EvalSampleSkew(Rule):
    """Evaluations on a sample of the validation set disagree with those on the whole set.

    ## What it looks at
    Evaluations of the objective on a sample, taken as training goes on, beside its value on the whole set (logged as NAME.full).
    The rule fires where the trial that is best on the sample is clearly not best on the whole set; or else where the sample says
    better or worse throughout, beyond the scatter of the differences. What is clear is measured by what tuning gained: the
    distance from the best trial to the worst quarter, or of one trial alone from its worst to its best evaluation.

    ## Why it matters
    A trial is chosen, and a checkpoint kept, by what the sample says. Where it misleads, that is decided by the sample.

    ## What to do
    Draw a larger sample, at random and in proportion to the classes, and compare once more.

    ## How sure
    Of a shift, confidence is 1 minus the p-value of the differences (a t test over trials, or over the evaluations of fewer than 3
    trials). A choice that the whole set refutes is a fact as far as the whole set tells: 0.9. Measured on simulated studies of 3 to
    100 trials, with one sample throughout or another each time: where sampling alone puts it off by a twentieth of what tuning
    gained (standard deviation), none raised a finding (by a tenth, up to 9 %); where it is shifted by half of that gain, all did.

    Example: "By val/accuracy on the sample trial-3 is best (0.934), but on the whole set it has 0.911 and trial-7 has 0.923."
    """

    playbook: ClassVar[str] = "Choosing a sample for periodic evaluation"
    goal: ClassVar[Goal] = "pipeline"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "eval-size",
                "curve-step-variance",
            ),
            shares="study",
            because="The sample that the evaluations take is at fault, and it is to be replaced.",
        ),
    )

    material: Share = 0.2
    """Smallest disagreement worth a word, as a share of what tuning gained. Our choice."""
    fewest: Count = 3
    """Trials from which on their order is compared; pairs below which nothing can be told."""
    false_alarms: Share = 0.05
    """How often chance alone may make the sample look shifted."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding: of the order of the trials, else of the level."""
        found = pairs(study)
        differences = _differences(found, self.fewest)
        if len(differences) < self.fewest:
            raise MissingData(
                f"{len(differences)} evaluations on the whole set are too few to compare with the sample; make {self.fewest}"
            )
        gain = _gain(found, self.fewest)
        chosen, best = found[0], min(found, key=lambda p: (float(p.whole.min()), p.trial.index))
        lost = float(chosen.whole.min() - best.whole.min())
        shift, p = float(differences.mean()), p_of_mean(differences)
        rows = (
            ("trials with both", str(len(found))),
            ("pairs of evaluations", str(sum(len(f.whole) for f in found))),
            ("sample less whole set, mean", f"{study.objective_value(shift):.3g} (p-value {p:.2g})"),
            ("sample less whole set, standard deviation", f"{differences.std(ddof=1):.3g}"),
            ("what tuning gained, on the whole set", f"{gain:.3g} (fires from {self.material:.0%} of it)"),
        )
        metric, value = study.spec.objective.metric, study.objective_value
        if len(found) >= self.fewest and lost > self.material * gain:
            message = (
                f"By {metric} on the sample {chosen.trial.name} is best ({value(chosen.sampled.min()):.4g}), but on the whole set "
                f"it has {value(chosen.whole.min()):.4g} and {best.trial.name} has {value(best.whole.min()):.4g}."
            )
            yield self._report(study, message, "warning", 0.9, [chosen, best], rows)
        elif p <= self.false_alarms and abs(shift) > self.material * gain:
            side = "worse" if shift > 0 else "better"
            message = f"On the sample, {metric} is {abs(shift):.2g} {side} than on the whole set"
            message += (
                f", {abs(shift) / gain:.0%} of what tuning gained." if gain > 0 else ", where all trials are equal."
            )
            yield self._report(study, message, "note", 1 - p, found, rows)

    def _report(
        self,
        study: Study,
        message: str,
        severity: Severity,
        confidence: float,
        shown: Sequence[Pairs],
        rows: tuple[tuple[str, str], ...],
    ) -> Finding:
        advice = "Evaluate on a larger sample, drawn at random and in proportion to the classes, and compare once more."
        return self.finding(
            message,
            action=advice,
            severity=severity,
            confidence=confidence,
            subject=study.spec.objective.metric,
            trials=[p.trial for p in shown],
            evidence=(FigureEvidence(rows=rows),),
            changes=(Advise(text=advice),),
        )


def _differences(found: Sequence[Pairs], fewest: int) -> FloatArray:
    """Sample less whole set: a mean a trial, as evaluations of one trial are no independent evidence; those of few trials all."""
    if len(found) >= fewest:
        return np.array([p.excess.mean() for p in found])
    return np.concatenate([p.excess for p in found])


def _gain(found: Sequence[Pairs], fewest: int) -> float:
    """What tuning gained on the whole set; of few trials, what training did."""
    if len(found) >= fewest:
        whole = np.array([p.whole.min() for p in found])
        return float(np.quantile(whole, 0.75) - whole.min())
    return float(max(np.ptp(p.whole) for p in found))
