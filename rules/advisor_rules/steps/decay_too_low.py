"""The rule `decay-too-low`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from advisor.computed.curves import curve_tails
from advisor.computed.steps import schedules
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise, SetSchedule
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line, Mark
from advisor.model.finding import Finding, Goal, MissingData
from advisor.model.space import Value
from advisor.model.study import Study
from advisor.stats import trend


class DecayTooLow(Rule):
    """Most of the training runs at a tiny learning rate, at which it learns next to nothing.

    ## What it looks at
    The logged learning rate of the five best trials among those that gained at least half of what the best one gained: from which
    step on it stays below three hundredths of its peak, and what the objective still gained from there. It must be most of the
    steps, with hardly a gain, in the best trial and in most of the others. Where a schedule that watches a metric brought the
    rate down, that is left to `schedule-ad-hoc`.

    ## Why it matters
    It happens when a training is made longer and its schedule is not, or is stretched with it: the extra steps go by at a rate that
    cannot use them.

    ## What to do
    Keep the decay as long as it was and put the extra steps before it, at the peak: a longer constant part. With a cosine, stretch
    it from the same base rate until the training's end. Or train for fewer steps.

    ## How sure
    The schedule is a fact, not an estimate. Confidence is the share of the good trials that agree, down to half of it where the
    tiny rate gained all that is allowed. A cosine and a straight line to zero spend 11 % and 3 % of their steps below the limit, an
    exponential decay to a thousandth just under half; none of these can fire.

    *Example:* "The learning rate lies below 3 % of its peak for 79 % of the steps in 5 of the 5 good trials, and the objective
    gains 0.4 % of its whole gain there."
    """

    playbook: ClassVar[str] = "Deciding how long to train when training is compute-bound"
    goal: ClassVar[Goal] = "steps"
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=(
                "curve-saturated",
                "step-position",
                "steps-compute-bound",
            ),
            shares="trials",
            because="The curve is flat because the learning rate is next to nothing there.",
        ),
    )

    tiny: Share = 0.03
    """Share of its peak below which a learning rate is tiny; ours."""
    most: Share = 0.5
    """Share of the steps at such a rate from which on it is most of the training."""
    gain: Share = 0.05
    """Largest share of the whole gain that may fall into these steps; with more, they are put to use. Ours."""
    best: Count = 5
    """How many of the best trials to look at."""
    reach: Share = 0.5
    """How far behind the best a trial may be to be a good one, as a share of what the best trial gained over its run."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield one finding about the study."""
        good = schedules.of_good_trials(study, self.reach, self.best)
        judged = [s for s in good if len(s.rates) >= schedules.FEWEST]
        if not judged:
            raise MissingData(
                f"no good trial logged its learning rate {schedules.FEWEST} times; log it at every step, as train/learning_rate "
                "(the advisor's training hook does)"
            )
        low = {s.trial.id: self._low(study, s) for s in judged}
        wasted = [s for s in judged if low[s.trial.id] is not None]
        if judged[0] not in wasted or 2 * len(wasted) <= len(judged):
            return
        yield self._finding(study, judged, wasted)

    def _low(self, study: Study, schedule: schedules.Schedule) -> tuple[int, int, float, float] | None:
        """(last step at the peak, first tiny one, share of the steps that are tiny, gain there); None if they are put to use."""
        found = schedule.low_from(self.tiny)
        if found is None or schedule.noted == "plateau":
            return None
        steps, costs = schedule.rates.steps, study.cost_curve(schedule.trial).finite
        share = (int(steps[-1]) - found[1]) / max(int(steps[-1]) - int(steps[0]), 1)
        gained = trend.gain_after(costs.steps, costs.values, after=found[1])
        return (*found, share, gained) if share > self.most and gained <= self.gain else None

    def _finding(self, study: Study, judged: list[schedules.Schedule], wasted: list[schedules.Schedule]) -> Finding:
        found = [low for s in wasted if (low := self._low(study, s)) is not None]
        share, gained = (float(np.median([f[k] for f in found])) for k in (2, 3))
        decay = curve_tails.round_up(float(np.median([f[1] - f[0] for f in found])))
        peak = float(np.median([s.rates.values.max() for s in wasted]))
        total = round(float(np.median([s.rates.steps[-1] for s in wasted]))) + 1
        plan: dict[str, Value] = {"constant_steps": max(total - decay, 0), "decay_steps": min(decay, total)}
        kind = wasted[0].noted
        schedule = plan if kind in (None, "other") else {"kind": kind, **plan}
        metric, trials = study.signals["learning_rate"], [s.trial for s in wasted]
        who = f"in {len(wasted)} of the {len(judged)} good trials" if len(judged) > 1 else f"in {trials[0].name}"
        said = f"The learning rate lies below {self.tiny:.0%} of its peak for {share:.0%} of the steps {who}"
        return self.finding(
            f"{said}, and the objective gains {gained:.1%} of its whole gain there.",
            action=f"Keep the decay at {study.length(decay)} after {max(total - decay, 0):,} at the peak rate, or train for fewer.",
            severity="warning",
            confidence=len(wasted) / len(judged) * (1 - 0.5 * max(gained, 0.0) / self.gain),
            subject=metric,
            side="low",
            trials=trials,
            evidence=(
                CurveEvidence(
                    metrics=(metric,),
                    caption=f"Most of the steps come after the learning rate has fallen below {self.tiny:.0%} of its peak.",
                    trials=tuple(t.id for t in trials),
                    marks=tuple(
                        Mark(trial=t.id, step=f[1], label="tiny from here on")
                        for t, f in zip(trials, found, strict=True)
                    ),
                    lines=(Line(value=self.tiny * peak, label=f"{self.tiny:.0%} of the peak"),),
                ),
                FigureEvidence(
                    rows=(
                        ("steps at a tiny rate, share of all", ", ".join(f"{f[2]:.0%}" for f in found)),
                        ("gain there, share of the whole", ", ".join(f"{f[3]:.1%}" for f in found)),
                        ("thresholds", f"more than {self.most:.0%} of the steps, at most {self.gain:.0%} of the gain"),
                    )
                ),
            ),
            changes=(
                SetSchedule(schedule=schedule, why=f"{said}."),
                Advise(
                    text="When a training is made longer, spend the extra steps at the peak learning rate, before the decay."
                ),
            ),
        )
