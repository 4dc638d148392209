"""The rule `step-position`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.finding import (
    Advise,
    Evidence,
    FigureEvidence,
    Finding,
    Goal,
    HistogramEvidence,
    Line,
    MissingData,
    SetField,
)
from advisor.readings import ends
from advisor.rule import Count, Factor, Rule, Share
from advisor.stats import trend
from advisor.study import Study


class StepPosition(Rule):
    """The best steps of the good trials all lie at the very start of training, or consistently near its end.

    ## What it looks at
    For every good trial, that is each of the best five that gained at least half of what the best one gained, the step with the
    best objective: the one that choosing a checkpoint afterwards finds, as a share of the steps that the trial was to train. One
    trial says nothing; the rule asks whether more best steps lie in the first tenth, or in the last quarter, than chance would put
    there. Where a curve is flat within its noise, any step of the flat part may come out best by luck, and chance is counted
    accordingly.

    ## Why it matters
    If the best step is always in the first tenth, most of the compute is wasted. If it is consistently in the last quarter, the
    trials may have ended before they were done.

    ## What to do
    First tenth: train for a fraction of the steps; but if the first evaluation is the best, training does not work at all, and that
    comes first. Last quarter: train longer and tune the decay of the learning rate again; but where that quarter brought next to
    nothing, leave the steps as they are.

    ## How sure
    Confidence: 1 minus the p-value of an exact test (Poisson binomial) that so many best steps lie there by chance, times the share
    that does. It takes 3 good trials to say "late" and 2 to say "early". Trials that share a schedule share its ups and downs,
    which the test does not know. In 400 simulated studies each of 10 to 50 evaluations, it fired in 0.7 to 1.8 % of those whose
    best steps lie anywhere and in 1.5 to 5 % of those on a noisy plateau (lag-1 correlation 0 to 0.5); promised are 5 %.

    *Example:* "The best step lies in the last 25 % of training in 5 of the 5 good trials (median 99 %); the steps that late
    brought 4.1 % of the gain."
    """

    playbook: ClassVar[str] = "Deciding how long to train when training is not compute-bound"
    goal: ClassVar[Goal] = "steps"

    best: Count = 5
    """How many of the best trials to look at; 3 are the fewest that can show "late" at the 5 % level."""
    reach: Share = 0.5
    """How far behind the best a trial may be to be a good one, as a share of what the best trial gained over its run."""
    early: Share = 0.1
    """First share of the steps in which all good trials must be at their best: the playbook's number."""
    late: Share = 0.25
    """Last share of the steps: the playbook's number."""
    consistent: Share = 0.75
    """Share of the good trials that must be at their best late."""
    material: Share = 0.01
    """Smallest gain of the last steps, as a share of what the trial gained, that asks for longer training; ours."""
    room: Factor = 3.0
    """Where all are early: how many times as long as up to the latest best step to train; ours, generous."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        placed = ends.best_steps(study, self.best, self.reach)
        if len(placed) < 2:
            raise MissingData(
                f"only {len(placed)} good trials ran to their end; where best steps lie takes at least 2 (early) or 3 (late)"
            )
        late = [p for p in placed if p.place > 1 - self.late]
        p_early = self.early ** len(placed)
        p_late = trend.chance_of_at_least(len(late), np.array([p.chance_late(self.late) for p in placed]))
        if max(p.place for p in placed) <= self.early and p_early <= self.false_alarms:
            yield self._early(placed, p_early)
        elif len(late) >= self.consistent * len(placed) and p_late <= self.false_alarms:
            yield self._late(study, placed, late, p_late)

    def _early(self, placed: Sequence[ends.BestStep], chance: float) -> Finding:
        steps, last = round(np.median([p.steps for p in placed])), max(p.place for p in placed)
        fewer = min(ends.round_up(self.room * last * steps), steps)
        share = f"in the first {self.early:.0%} of training in all {len(placed)} good trials"
        message = f"The best step lies {share}, at {last:.1%} or before"
        action = f"Train for {fewer:,} steps instead of {steps:,}, with a regulariser if validation gets worse after its best step."
        why = f"No good trial is at its best after {last:.1%} of {steps:,} steps; this is {self.room:g} times that."
        unlearned = all(p.at_start for p in placed)
        if unlearned:
            message += ": their first evaluation is their best, so training made nothing better"
            action = (
                "Make training work before choosing its length: search lower learning rates and check the pipeline."
            )
        return self.finding(
            message + ".",
            action=action,
            severity="warning",
            confidence=1 - chance,
            side="low",
            trials=[p.trial for p in placed],
            evidence=self._evidence(placed, chance, f"Every good trial is at its best in the first {self.early:.0%}."),
            changes=(Advise(text=action) if unlearned else SetField(field="max_train_steps", value=fewer, why=why),),
        )

    def _late(
        self, study: Study, placed: Sequence[ends.BestStep], late: Sequence[ends.BestStep], chance: float
    ) -> Finding:
        trials = [p.trial for p in late]
        steps, middle = round(np.median([p.steps for p in late])), np.median([p.place for p in placed])
        gain = float(np.median([ends.late_gain(study, p, self.late) for p in late]))
        longer = ends.round_up(steps * ends.stretch(study, trials))
        share = f"in the last {self.late:.0%} of training in {len(late)} of the {len(placed)} good trials"
        action = f"Train for {longer:,} steps instead of {steps:,} and tune the decay of the learning rate again."
        worth = gain >= self.material
        if not worth:
            action = f"Keep the {steps:,} steps: the best one comes late, but the last {self.late:.0%} bring next to nothing."
        why = f"The best step lies {share}; the decay of the learning rate is to be tuned again."
        return self.finding(
            f"The best step lies {share} (median {middle:.0%}); the steps that late brought {gain:.1%} of the gain.",
            action=action,
            severity="warning" if worth else "note",
            confidence=(1 - chance) * len(late) / len(placed),
            side="high",
            trials=trials,
            evidence=self._evidence(
                placed, chance, f"{len(late)} of {len(placed)} good trials are at their best late."
            ),
            changes=(SetField(field="max_train_steps", value=longer, why=why) if worth else Advise(text=action),),
        )

    def _evidence(self, placed: Sequence[ends.BestStep], chance: float, caption: str) -> tuple[Evidence, ...]:
        at = np.array([p.place for p in placed])
        counts, edges = np.histogram(at, bins=20, range=(0, 1))
        return (
            HistogramEvidence(
                quantity="best step, as a share of the steps to train",
                caption=caption,
                edges=tuple(edges.tolist()),
                counts=tuple(counts.tolist()),
                lines=(Line(value=self.early, label="first tenth"), Line(value=1 - self.late, label="last quarter")),
            ),
            FigureEvidence(
                rows=(
                    ("good trials", str(len(at))),
                    ("best steps, share of training", f"{at.min():.1%} to {at.max():.1%}, median {np.median(at):.1%}"),
                    ("probability of so many by chance (exact)", f"{chance:.2g}"),
                    (
                        "thresholds",
                        f"p at most {self.false_alarms:g}; all trials early, or {self.consistent:.0%} of them late",
                    ),
                )
            ),
        )
