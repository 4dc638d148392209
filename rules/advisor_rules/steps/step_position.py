"""The rule `step-position`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.engine.rule import Count, Factor, Rule, Share
from advisor.model.change import Advise, SetField
from advisor.model.evidence import Evidence
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.study import Study
from advisor.stats import trend
from advisor_rules.steps import _best_steps
from advisor_rules.steps._best_steps import BestStep, Late


class StepPosition(Rule):
    """The best steps of the good trials all lie at the very start of training, or consistently near its end.

    ## What it looks at
    For every good trial, that is each of the best five that gained at least half of what the best one gained, the step with the
    best objective: the one that choosing a checkpoint afterwards finds, as a share of the steps that the trial was to train. The
    rule asks whether more best steps lie in the first tenth, or in the last quarter, than chance would put there; where a curve is
    flat within its noise, any step of the flat part may be best by luck. A trial evaluated at fewer than 6 steps says nothing.

    ## Why it matters
    If the best step is always in the first tenth, most of the compute is wasted. If it is consistently in the last quarter, the
    trials may have ended before they were done. They need not have: a learning rate that decays to near zero puts the best step of
    every healthy training last. So where that is known of most of them, a late best step alone is not worth a word.

    ## What to do
    First tenth: train for a fraction of the steps; but if the first evaluation is the best, training does not work at all, and
    that comes first. Last quarter: a warning, train longer and tune the decay again, where most of the good trials still improve
    by the forecast of `curve-still-improving`; after a decay the forecast must exceed five times as much for sure. Where
    `curve-still-improving` itself speaks, the number of steps is left to it. Else a note, which says how little the late steps
    brought and proposes no other number of steps.

    ## How sure
    Confidence: 1 minus the p-value of an exact test (Poisson binomial) that so many best steps lie there by chance, times the share
    that does; of a note at most 0.95. It takes 3 good trials to say "late" and 2 to say "early". In 400 simulated studies each of
    10 to 50 evaluations, it fired in 0.7 to 1.8 % of those whose best steps lie anywhere and in 1.5 to 5 % of those on a noisy
    plateau (lag-1 correlation 0 to 0.5). Of 1,200 simulated healthy studies with a cosine decay to zero none got more than the
    note, and none even that where the learning rate was logged.

    *Example:* "The best step lies in the last 25 % of training in 5 of the 5 good trials (median 99 %), and the last
    quarter brought 4.1 % of the gain."
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
    material: Share = curve_tails.MATERIAL
    """Forecast gain of as many steps again, as a share of what the trial gained, that asks for longer training: as in
    `curve-still-improving`."""
    decayed: Share = curve_tails.DECAYED
    """The learning rate counts as decayed to near zero where it ends below this share of its peak. Ours."""
    strong: Share = 0.05
    """Forecast gain that must surely be exceeded where the learning rate decayed: where `curve-still-improving` warns."""
    room: Factor = 3.0
    """Where all are early: how many times as long as up to the latest best step to train; ours, generous."""
    false_alarms: Share = 0.05
    """How often, per study, chance alone may raise a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding about the study."""
        placed = _best_steps.read(study, self.best, self.reach, fewest=self.evaluations)
        if len(placed) < 2:
            raise MissingData(
                f"only {len(placed)} good trials ran to their end with {study.spec.objective.metric} logged at {self.evaluations} "
                "steps or more; where best steps lie takes at least 2 (early) or 3 (late): evaluate more often during training"
            )
        late = [p for p in placed if p.place > 1 - self.late]
        p_early = self.early ** len(placed)
        p_late = trend.chance_of_at_least(len(late), np.array([p.chance_late(self.late) for p in placed]))
        if max(p.place for p in placed) <= self.early and p_early <= self.false_alarms:
            yield self._early(study, placed, p_early)
        elif len(late) >= self.consistent * len(placed) and p_late <= self.false_alarms:
            known = {"decayed": self.decayed, "material": self.material, "strong": self.strong}
            found = _best_steps.late_trials(study, placed, self.late, **known, alpha=self.false_alarms)
            if found.longer or not found.decayed:  # else the schedule explains it
                yield self._late(study, placed, found, p_late)

    def _early(self, study: Study, placed: Sequence[BestStep], chance: float) -> Finding:
        steps, last = round(np.median([p.steps for p in placed])), max(p.place for p in placed)
        fewer = min(curve_tails.round_up(self.room * last * steps), steps)
        share = f"in the first {self.early:.0%} of training in {'both' if len(placed) == 2 else f'all {len(placed)}'} good trials"
        message = f"The best step lies {share}, at {last:.1%} or before"
        action = f"Train for {study.length(fewer)} instead of {steps:,}, and regularise if validation gets worse later."
        why = (
            f"No good trial is at its best after {last:.1%} of {study.length(steps)}; this is {self.room:g} times that."
        )
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

    def _late(self, study: Study, placed: Sequence[BestStep], late: Late, chance: float) -> Finding:
        many, of = len(late.steps), len(placed)
        share = f"in the last {self.late:.0%} of training in {many} of the {of} good trials"
        middle = np.median([p.place for p in placed])
        change: Advise | SetField
        if late.longer:
            steps = round(np.median([p.steps for p in late.steps]))
            action = f"Train for {study.length(late.longer)} instead of {steps:,} and tune the decay of the learning rate again."
            why = f"The best step lies {share}, and {late.improving} of these trials still improve when they end."
            change = SetField(field="max_train_steps", value=late.longer, why=why)
        else:
            flat = "flat" if late.gain <= self.material else "open"
            known = flat if np.isfinite(late.rates).any() else "unknown"
            action = _ADVICE["improving" if late.left_to_others else known]
            change = Advise(text=action)
        sure = (1 - chance) * many / of
        return self.finding(
            f"The best step lies {share} (median {middle:.0%}), and the last quarter brought {late.gain:.1%} of the gain.",
            action=action,
            severity="warning" if late.longer else "note",
            confidence=sure if late.longer else min(sure, 1 - self.false_alarms),
            side="high",
            trials=[p.trial for p in late.steps],
            evidence=self._evidence(placed, chance, f"{many} of {of} good trials are at their best late.", late.rows),
            changes=(change,),
        )

    def _evidence(
        self, placed: Sequence[BestStep], chance: float, caption: str, rows: Sequence[tuple[str, str]] = ()
    ) -> tuple[Evidence, ...]:
        needed = f"p at most {self.false_alarms:g}; all trials early, or {self.consistent:.0%} of them late"
        lines = {"first tenth": self.early, "last quarter": 1 - self.late}
        told = (("probability of so many by chance (exact)", f"{chance:.2g}"), ("thresholds", needed))
        return _best_steps.evidence(placed, caption, lines, (*told, *rows))


_ADVICE = {
    "improving": "Choose the training length by how the curves end, which still improve.",
    "flat": "Leave the training length as it is: these curves end too flat for more steps to pay.",
    "open": "Decay the learning rate to zero before the training is made longer: whether more steps pay shows only then.",
    "unknown": "Log the learning rate: if it decays to near zero, the best step is last in any healthy training.",
}
"""Of late best steps that ask for no other number: by whether `curve-still-improving` speaks, the learning rate is known, and how
much the last quarter brought."""
