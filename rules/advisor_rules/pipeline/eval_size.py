"""The rule `eval-size`; its page is the docstring of the class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.computed.curves.curve_tails import round_up
from advisor.computed.decision import repeats
from advisor.computed.pipeline import validation
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import FigureEvidence
from advisor.model.finding import Finding, Goal, MissingData, Severity
from advisor.model.study import Study, Trial
from advisor.stats.heterogeneity import Heterogeneity, heterogeneity


class EvalSize(Rule):
    """The validation set is too small to tell the best trials apart.

    ## What it looks at
    The standard error of the best trials' objective, from the number of validation examples: an accuracy or an error rate is a
    share of n examples, and its error follows from that; of a loss or a score, the spread over the examples must have been logged.
    The best trials, one a setting, as repeats need no order, are compared by the range that equal ones would have. It fires where
    theirs is no wider, and what it takes to tell them apart is a good part of what separates the best from the median trial.

    ## Why it matters
    The best of several trials is then chosen by which examples happen to be in the set. With classes of few examples, what looks
    like progress on one of them may be a single example.

    ## What to do
    Validate on more examples, or take the best trials as equal and choose by something else. For rare classes, look at counts.

    ## How sure
    Confidence is the probability that another set of the same size would leave the trials within that range again. Measured on
    simulated studies of 2 to 100 trials and 200 or 1,000 examples: where the best trials truly differ by 2.5 times what it takes,
    at most 3 % raised a finding (by twice, 9 %); where they were equal, 93 % or more did, unless what it takes was a small part of
    what tuning gained. Evaluations within a trial are not drawn anew here: see curve-step-variance for their noise.

    Example: "With 40 validation examples, val/error of the 5 best trials differs by 0.05, and it takes 0.13 to tell them apart: any
    of them may be the best."
    """

    playbook: ClassVar[str] = "Choosing a sample for periodic evaluation"
    goal: ClassVar[Goal] = "efficiency"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "curve-step-variance",
                "adopt",
                "tuning-saturated",
            ),
            shares="study",
            because="With so few validation examples, trials that differ look alike.",
        ),
    )

    best: Count = 5
    """How many of the best trials to compare."""
    agreement: Share = 0.5
    """Correlation of two trials' errors over the examples: trainings of one architecture err on about half of the same examples, as
    published measurements of how often two of them disagree show."""
    blur: Share = 0.1
    """What it takes to tell trials apart, as a share of what separates the best from the median trial, that is still fine. Ours."""
    rare: Count = 20
    """Examples of a class below which a single one moves its accuracy by more than 0.05, the playbook's example."""
    false_alarms: Share = 0.05
    """How often equal trials may seem to differ."""

    def check(self, study: Study) -> Iterator[Finding]:
        """At most one finding: of the whole set, else of rare classes."""
        ranked = study.ranked()
        best_of = {repeats.key(t): t for t in reversed(ranked)}
        trials = [t for t in ranked if not t.params or best_of[repeats.key(t)] is t][: self.best]
        if len(trials) < 2:
            raise MissingData(
                "fewer than two settings ended with a finite objective, so there is nothing to tell apart"
            )
        costs = study.costs[[t.index for t in trials]]
        error = validation.standard_errors(study, trials) * math.sqrt(1 - self.agreement)
        found = heterogeneity(costs, error, self.false_alarms)
        gain = float(np.median(study.costs[study.feasible]) - costs[0])
        if found.p > self.false_alarms and found.critical_range > self.blur * gain:
            yield self._too_small(study, trials, found, gain)
        else:
            yield from self._rare_classes(study, trials[0])

    def _too_small(self, study: Study, trials: Sequence[Trial], found: Heterogeneity, gain: float) -> Finding:
        metric, n = study.spec.objective.metric, trials[0].fact("n_valid")
        factor = (found.critical_range / found.spread) ** 2 if found.spread > 0 else math.inf
        advice = (
            f"Validate on about {round_up(n * factor):,} examples, or take these trials as equal."
            if factor <= 100
            else "Take these trials as equal and choose by cost or simplicity; no validation set in reach tells them apart."
        )
        severity: Severity = "warning" if found.critical_range > gain else "note"
        counts = validation.class_counts(trials[0])
        rows = [
            ("validation examples", f"{n:,.0f}"),
            ("standard error of one trial", f"{found.error / math.sqrt(1 - self.agreement):.3g}"),
            ("of that, not shared by trials", f"{found.error:.3g} (correlation {self.agreement:g})"),
            (f"range of the {len(trials)} best trials", f"{found.spread:.3g}"),
            (
                "range that tells them apart",
                f"{found.critical_range:.3g} (equal trials exceed it in {self.false_alarms:.0%})",
            ),
            ("chance of such a range if they were equal", f"{found.p:.2g}"),
            ("best to median trial", f"{gain:.3g} (fires where telling apart takes more than {self.blur:.0%} of it)"),
        ]
        if counts:
            rows.append(("examples of the rarest class", str(min(counts))))
        return self._finding(
            f"With {n:,.0f} validation examples, {metric} of the {len(trials)} best trials differs by {found.spread:.2g}, and it "
            f"takes {found.critical_range:.2g} to tell them apart: any of them may be the best.",
            advice, severity, found.chance_within, study, trials, rows,
        )  # fmt: skip

    def _rare_classes(self, study: Study, trial: Trial) -> Iterator[Finding]:
        counts = validation.class_counts(trial)
        rare = sorted(n for n in counts if n < self.rare)
        if rare:
            yield self._finding(
                f"{len(rare)} of {len(counts)} classes have fewer than {self.rare} validation examples, the rarest {rare[0]}: one "
                f"more right answer moves its accuracy by {1 / max(rare[0], 1):.0%}.",
                "Log how many examples of rare classes are right, as counts, and validate on more of them.",
                "note", 1.0, study, [trial], [("examples of each class", ", ".join(map(str, sorted(counts)[:20])))],
            )  # fmt: skip

    def _finding(
        self,
        message: str,
        advice: str,
        severity: Severity,
        confidence: float,
        study: Study,
        trials: Sequence[Trial],
        rows: Sequence[tuple[str, str]],
    ) -> Finding:
        return self.finding(
            message,
            action=advice,
            severity=severity,
            confidence=confidence,
            subject=study.spec.objective.metric,
            trials=trials,
            evidence=(FigureEvidence(rows=tuple(rows)),),
            changes=(Advise(text=advice),),
        )
