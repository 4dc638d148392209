from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from advisor.computed.steps import schedules
from advisor.computed.steps.schedules import schedules_of_good_trials
from advisor.engine.rule import Relation, RuleOnGoodTrials, Share
from advisor.model.change import Advise, SetSchedule
from advisor.model.evidence import Evidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Name, Percent, join_items, say
from advisor.model.space import HyperparameterValue, round_up_steps
from advisor.model.study import Study
from advisor.stats.curve import gain_share_after


class DecayTooLow(RuleOnGoodTrials):
    """Most of the training runs at a tiny learning rate, at which the model learns almost nothing.

    ## What it looks at
    The rule examines the logged learning rate of the five best trials that achieved at least half of the best trial's
    improvement during training. The rule finds the final phase in which the learning rate stays below 3 % of its peak, and
    measures how much the objective improves in this phase. The rule fires if the final phase takes most of the training and
    improves the objective by almost nothing, in the best trial and in most of the examined trials. If a scheduler that watches
    a metric lowered the rate, see the rule `schedule-ad-hoc` instead.

    ## Why it matters
    Tiny rates occur if a training is made longer without a change of its schedule, or if the schedule is stretched too far.
    After such a change, the extra steps run at a learning rate that is too low to learn.

    ## What to do
    Keep the length of the decay and put the extra steps before it, at the peak rate. With a cosine schedule, let the decay from
    the base rate last until the end of training. Alternatively, train for fewer steps.

    ## How sure
    The schedule is a logged fact, not an estimate. Confidence is the share of the examined trials with such a final phase,
    reduced by up to a half if the improvement in this phase is near the threshold. A cosine decay to zero spends 11 % of its
    steps below 3 % of the peak, a linear decay 3 %, and an exponential decay to a thousandth just under half; the rule fires
    for none of these schedules.
    """

    playbook = "Deciding how long to train when training is compute-bound"
    goal = "steps"
    needs_learning = True
    explains = Relation(
        rules=("curve-saturated", "step-position", "steps-compute-bound"),
        shares="trials",
        because="The curve is flat because the learning rate is almost zero in that part.",
    )

    tiny: Share = 0.03
    """Maximum learning rate that counts as tiny, as a share of its peak. Our choice."""
    most: Share = 0.5
    """Minimum share of the steps at a tiny learning rate for a finding."""
    gain: Share = 0.05
    """Maximum improvement of the objective in the steps at a tiny rate, as a share of the whole improvement; more improvement
    makes these steps useful. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        good_schedules = schedules_of_good_trials(study, self.reach, self.best)
        judged_schedules = [s for s in good_schedules if len(s.rates) >= schedules.MIN_LOGGED_RATES]
        if not judged_schedules:
            raise MissingData(
                f"{schedules.reason_schedule_unknown(study, [s.trial for s in good_schedules])}; "
                "log it at every step, as train/learning_rate (the advisor's training hook does)",
                needs="learning_rate",
            )
        phases = [self._tiny_rate_phase(study, s) for s in judged_schedules]
        wasted_phases = [p for p in phases if p is not None]
        if phases[0] is not None and 2 * len(wasted_phases) > len(judged_schedules):
            yield self._build_finding(study, len(judged_schedules), wasted_phases)

    def _tiny_rate_phase(self, study: Study, schedule: schedules.Schedule) -> _TinyRatePhase | None:
        phase = schedule.final_low_phase(self.tiny)
        if phase is None or schedule.logged_kind == "plateau":
            return None
        steps, costs = schedule.rates.steps, study.cost_curve(schedule.trial).finite
        share = (int(steps[-1]) - phase[1]) / max(int(steps[-1]) - int(steps[0]), 1)
        gain = gain_share_after(costs.steps, costs.values, after=phase[1])
        return _TinyRatePhase(schedule, *phase, share, gain) if share > self.most and gain <= self.gain else None

    def _plot_rates(self, study: Study, phases: list[_TinyRatePhase]) -> Evidence:
        tiny, peak = Percent(self.tiny), float(np.median([w.schedule.rates.values.max() for w in phases]))
        return curve_plot(
            study.signals["learning_rate"],
            say("The learning rate is below {tiny} of its peak for most of the steps.", tiny=tiny),
            [w.schedule.trial for w in phases],
            marks=[Mark(trial=w.schedule.trial.id, step=w.start, label="tiny rate from here on") for w in phases],
            lines={f"{tiny} of the peak": self.tiny * peak},
        )

    def _build_finding(self, study: Study, judged_count: int, phases: list[_TinyRatePhase]) -> Finding:
        share, gain = (float(np.median([getattr(w, key) for w in phases])) for key in ("share", "gained"))
        decay = round_up_steps(float(np.median([w.start - w.last_peak_step for w in phases])))
        steps = round(float(np.median([w.schedule.rates.steps[-1] for w in phases]))) + 1
        plan: dict[str, HyperparameterValue] = {"constant_steps": max(steps - decay, 0), "decay_steps": min(decay, steps)}
        logged_kind = phases[0].schedule.logged_kind
        schedule = plan if logged_kind in (None, "other") else {"kind": logged_kind, **plan}
        trials, limits = [w.schedule.trial for w in phases], "more than {most} of the steps, at most {gain} of the improvement"
        trials_text = say("{n} of the {judged} good trials", n=len(phases), judged=judged_count)
        which_trials, tiny = trials_text if judged_count > 1 else Name(trials[0].name), Percent(self.tiny)
        text = "The learning rate lies below {tiny} of its peak for {share} of the steps in {where}"
        statement = say(text, tiny=tiny, share=Percent(share), where=which_trials)
        text = "Decay the learning rate over {decay}, after {constant} at the peak rate, or train for fewer steps."
        return self.finding(
            say("{what}; these steps bring {gained} of the total improvement.", what=statement, gained=Percent(gain, 1)),
            action=say(text, decay=study.length(decay), constant=max(steps - decay, 0)),
            severity="warning",
            confidence=len(phases) / judged_count * (1 - 0.5 * max(gain, 0.0) / self.gain),
            subject=study.signals["learning_rate"],
            side="low",
            trials=trials,
            evidence=(
                self._plot_rates(study, phases),
                table(
                    ("steps at a tiny rate, as a share of all steps", join_items(Percent(w.share) for w in phases)),
                    ("improvement in these steps, as a share of the total", join_items(Percent(w.gained, 1) for w in phases)),
                    ("thresholds", say(limits, most=Percent(self.most), gain=Percent(self.gain))),
                ),
            ),
            changes=(
                SetSchedule(schedule=schedule, why=f"{statement}."),
                Advise(
                    text="When a training is made longer, spend the extra steps at the peak learning rate, before the decay."
                ),
            ),
        )


class _TinyRatePhase(NamedTuple):
    schedule: schedules.Schedule
    last_peak_step: int
    start: int
    """First step of the final phase at a tiny learning rate."""
    share: float
    gained: float
    """Improvement of the objective in the final phase, as a share of the whole improvement."""
