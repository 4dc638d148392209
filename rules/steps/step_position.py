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
    trial says nothing; the rule asks whether more best steps lie in the first tenth, or in the last quarter, than chance would
    put there. Where a curve is flat within its noise, any step of the flat part may come out best by luck, and chance is counted
    accordingly. A trial evaluated at fewer than 6 steps says nothing either: its best step had hardly a choice.

    ## Why it matters
    If the best step is always in the first tenth, most of the compute is wasted. If it is consistently in the last quarter, the
    trials may have ended before they were done. They need not have: a learning rate that decays to zero puts the best step of
    every healthy training last.

    ## What to do
    First tenth: train for a fraction of the steps; but if the first evaluation is the best, training does not work at all, and
    that comes first. Last quarter: a note, which proposes no other number of steps, unless the curves' ends show that more would
    pay. They do where most of the good trials still improve, by the forecast of `curve-still-improving`; of a trial whose logged
    learning rate ends below a tenth of its peak, the forecast must exceed five times as much for sure. Then train longer and tune
    the decay of the learning rate again. Where `curve-still-improving` itself speaks, the number of steps is left to it.

    ## How sure
    Confidence: 1 minus the p-value of an exact test (Poisson binomial) that so many best steps lie there by chance, times the
    share that does; of a note at most 0.95, so that it does not come before a finding on the same curves that proposes a number.
    It takes 3 good trials to say "late" and 2 to say "early". Trials that share a schedule share its ups and downs, which the
    test does not know. In 400 simulated studies each of 10 to 50 evaluations, it fired in 0.7 to 1.8 % of those whose best steps
    lie anywhere and in 1.5 to 5 % of those on a noisy plateau (lag-1 correlation 0 to 0.5); promised are 5 %. Of 1,200 simulated
    healthy studies with a cosine decay to zero (10 to 50 evaluations, learning rate logged or not) all got the note and none a
    warning or another number of steps.

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
    evaluations: Count = 6
    """Fewest steps at which a trial must have been evaluated; with fewer, early and late are one or two evaluations. Ours."""
    consistent: Share = 0.75
    """Share of the good trials that must be at their best late."""
    material: Share = ends.MATERIAL
    """Forecast gain of as many steps again, as a share of what the trial gained, that asks for longer training: as in
    `curve-still-improving`."""
    decayed: Share = ends.DECAYED
    """The learning rate counts as decayed to near zero where it ends below this share of its peak. Ours."""
    strong: Share = 0.05
    """Forecast gain that must surely be exceeded where the learning rate decayed: where `curve-still-improving` warns."""
    room: Factor = 3.0
    """Where all are early: how many times as long as up to the latest best step to train; ours, generous."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        placed = ends.best_steps(study, self.best, self.reach, fewest=self.evaluations)
        if len(placed) < 2:
            raise MissingData(
                f"only {len(placed)} good trials ran to their end with {study.spec.objective.metric} logged at {self.evaluations} "
                "steps or more; where best steps lie takes at least 2 (early) or 3 (late): evaluate more often during training"
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
        share = f"in the last {self.late:.0%} of training in {len(late)} of the {len(placed)} good trials"
        readings = [ends.objective_end(study, t) for t in trials]
        rates = [ends.rate_at_end(study, t) for t in trials]
        paying = [e for e, r in zip(readings, rates, strict=True) if e is not None and self._pays(e, r)]
        change: Advise | SetField
        if 2 * len(paying) > len(placed) and not ends.asks_for_more(study, self.false_alarms):
            longer = ends.round_up(steps * float(np.median([e.stretch for e in paying])))
            action = f"Train for {longer:,} steps instead of {steps:,} and tune the decay of the learning rate again."
            why = f"The best step lies {share}, and {len(paying)} of these trials still improve when they end."
            change = SetField(field="max_train_steps", value=longer, why=why)
        else:
            action = "Choose the training length by how the curves end, not by the late best step" + (
                ": a learning rate that decays to near zero puts the best step last in any healthy training."
                if any(r < self.decayed for r in rates)
                else "."
            )
            change = Advise(text=action)
        forecasts = ", ".join("unknown" if e is None else f"{e.forecast:.1%}" for e in readings)
        ended = ", ".join("not logged" if np.isnan(r) else f"{r:.1%}" for r in rates)
        caption = f"{len(late)} of {len(placed)} good trials are at their best late."
        rows = (
            ("forecast for as many steps again, share of the gain", forecasts),
            ("learning rate at the end, share of its peak", ended),
        )
        sure, warns = (1 - chance) * len(late) / len(placed), isinstance(change, SetField)
        return self.finding(
            f"The best step lies {share} (median {middle:.0%}); the steps that late brought {gain:.1%} of the gain.",
            action=action,
            severity="warning" if warns else "note",
            confidence=sure if warns else min(sure, 1 - self.false_alarms),
            side="high",
            trials=trials,
            evidence=self._evidence(placed, chance, caption, rows),
            changes=(change,),
        )

    def _pays(self, end: trend.End, rate: float) -> bool:
        """Whether a trial that ends like this, at this share of its peak learning rate, shows that more steps would pay."""
        sure = not rate < self.decayed or end.chance_above(self.strong) >= 1 - self.false_alarms
        return sure and end.improving(self.material, self.false_alarms)

    def _evidence(
        self, placed: Sequence[ends.BestStep], chance: float, caption: str, rows: tuple[tuple[str, str], ...] = ()
    ) -> tuple[Evidence, ...]:
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
                    *rows,
                )
            ),
        )
