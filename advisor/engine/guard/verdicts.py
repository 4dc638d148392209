"""Judges the running trials of a study."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from advisor.computed.steps import schedules
from advisor.engine.guard.policy import ImprovementBounds, Policy, TrialProgress, exceedance_margin
from advisor.engine.guard.replay import is_not_finite
from advisor.model.message import Message, Name, Number, Objective, Percent, say
from advisor.model.study import Study, Trial

RunningTrialState = Literal["doomed", "not_finite", "diverging", "stuck", "fine", "unknown"]
"""State of a running trial:

- doomed: the trial cannot become the best
- not_finite: its objective is NaN or infinite
- diverging: it lost most of its improvement
- stuck: its objective is still at its first value, although its siblings had left their first values at this step
- fine: none of these
- unknown: the trial cannot be judged
"""

MAX_RELATIVE_LENGTH_DIFFERENCE = 0.01
"""Maximum difference between the planned lengths of two siblings, as a share of the length."""
MAX_RELATIVE_LENGTH_EXCESS = 0.02
"""Maximum excess of a trial's last step over its planned length, as a share of the length; beyond it, the plan counts as wrong."""
MIN_STUCK_TRAINING_SHARE = 0.2
"""Minimum share of its planned length that a trial must have trained to count as stuck."""
MIN_LEARNING_GAIN_SHARE = 0.05
"""Minimum improvement that counts as learning, as a share of the distance from the first cost to the best complete trial's cost."""
MIN_LOST_IMPROVEMENT_SHARE = 0.8
"""Minimum share of its improvement that a diverging trial has lost."""
MIN_RISE_TO_NOISE = 5.0
"""Minimum rise of a diverging trial, in median absolute differences between successive evaluations."""


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The verdict on one running trial."""

    trial: Trial
    state: RunningTrialState
    step: int
    """Last evaluated step; 0 if there is none."""
    length: float
    """Planned steps; NaN if unknown."""
    message: Message
    """The verdict and its evidence, or the reason why the trial cannot be judged."""
    stop: bool = False
    """True if the evidence is strong enough to stop the trial."""
    bounds: ImprovementBounds | None = field(default=None, compare=False)

    @property
    def saved(self) -> float:
        """Number of steps that are saved if the trial stops now; 0 if it should continue or its length is unknown."""
        steps_left = self.length - self.step
        return max(0.0, steps_left) if self.stop and math.isfinite(steps_left) else 0.0


def running_verdicts(study: Study) -> tuple[TrialVerdict, ...]:
    """Return a verdict on each running trial of the study."""
    policy = Policy()
    curves = ((t, study.cost_curve(t)) for t in study.trials)
    progress_by_trial = {t.index: TrialProgress(c.steps, c.values, study.planned_steps(t)) for t, c in curves}
    running_trials = [t for t in study.trials if t.status == "running"]
    return tuple(_TrialJudge(study, policy, progress_by_trial).verdict(t) for t in running_trials)


@dataclass(frozen=True)
class _TrialJudge:
    study: Study
    policy: Policy
    progress: dict[int, TrialProgress]

    def verdict(self, trial: Trial) -> TrialVerdict:
        own = self.progress[trial.index]
        last_step = int(own.steps[-1]) if len(own.steps) else 0

        def make_verdict(
            state: RunningTrialState, message: Message, *, stop: bool = False, bounds: ImprovementBounds | None = None
        ) -> TrialVerdict:
            return TrialVerdict(trial, state, last_step, own.length, message, stop, bounds)

        if len(own.steps) and not np.isfinite(own.costs[-1]):
            return make_verdict("not_finite", self._not_finite_text(trial, own), stop=is_not_finite(own, len(own.steps) - 1))
        siblings = self._siblings(trial)
        if (reason := next(self._reasons_not_to_judge(trial, own, siblings), None)) is not None:
            return make_verdict("unknown", reason)
        last_index = len(own.steps) - 1
        bounds = self.policy.bounds_if_doomed(own, last_index, siblings)
        if bounds is not None:
            return make_verdict("doomed", self._doomed_text(trial, own, bounds), stop=True, bounds=bounds)
        if (text := self._stuck_text(trial, own, siblings)) is not None:
            return make_verdict("stuck", text)
        if (text := self._diverging_text(trial, own)) is not None:
            return make_verdict("diverging", text)
        return make_verdict("fine", say("{trial} can still become the best.", trial=Name(trial.name)))

    def _siblings(self, trial: Trial) -> list[TrialProgress]:
        """Return the completed trials with a finite result and the same planned length and kind of schedule."""
        schedule_kinds = {t.index: schedules.read_schedule(self.study, t).logged_kind for t in self.study.trials}
        length = self.progress[trial.index].length
        siblings = []
        for other in self.study.trials:
            own = self.progress[other.index]
            is_complete = other.status in ("complete", "not_learned") and len(own.steps) > 0 and math.isfinite(own.best[-1])
            has_same_length = abs(own.length - length) <= MAX_RELATIVE_LENGTH_DIFFERENCE * length
            if is_complete and has_same_length and schedule_kinds.get(other.index) == schedule_kinds.get(trial.index):
                siblings.append(own)
        return siblings

    def _reasons_not_to_judge(self, trial: Trial, own: TrialProgress, siblings: Sequence[TrialProgress]) -> Iterator[Message]:
        name = Name(trial.name)
        if self.study.probe is not None:
            yield say("{trial} belongs to a short diagnostic run, not to a search.", trial=name)
        if not len(own.steps):
            yield say("{trial} has not been evaluated yet.", trial=name)
        if not math.isfinite(own.length):
            yield say("The planned length of {trial} is unknown: log max_train_steps.", trial=name)
        if any(o.params == trial.params and o.index != trial.index for o in self.study.trials):
            yield say("The setting of {trial} runs with several seeds, and the mean over the seeds counts.", trial=name)
        if any(p.steps[-1] > (1 + MAX_RELATIVE_LENGTH_EXCESS) * own.length for p in (own, *siblings) if len(p.steps)):
            yield say("Trials train beyond the planned {length} steps, so the plan is wrong.", length=Number(own.length, 6))
        times = self.study.cost_curve(trial).times
        if (np.diff(times[np.isfinite(times)]) < 0).any():
            yield say("The evaluations of {trial} are out of order: a later step was logged earlier.", trial=name)
        if (count := len(siblings)) < self.policy.siblings:
            text = "{count} trials with the same length and schedule are complete; {needed} are needed."
            yield say(text, count=count, needed=self.policy.siblings)
        elif not self.policy.has_enough_evaluations(siblings):
            yield say("Trials are evaluated fewer than {count} times.", count=self.policy.evaluations)

    def _not_finite_text(self, trial: Trial, own: TrialProgress) -> Message:
        finite = np.flatnonzero(np.isfinite(own.costs))
        at = self.study.at(int(own.steps[finite[-1] + 1 if len(finite) else 0]))
        metric = Name(self.study.spec.objective.metric)
        return say("{metric} of {trial} is not finite from {step} on.", metric=metric, trial=Name(trial.name), step=at)

    def _doomed_text(self, trial: Trial, own: TrialProgress, bounds: ImprovementBounds) -> Message:
        value = self.study.objective_value
        return say(
            "{trial} cannot become the best: after {done} of its training its best {metric} is {best}, and the best complete "
            "trial has {incumbent}. It needs a gain of {needed}. From here on, no complete trial gained more than {later}, and at "
            "its own recent pace it would gain {own}.",
            trial=Name(trial.name),
            done=Percent(min(1.0, bounds.step / own.length)),
            metric=Name(self.study.spec.objective.metric),
            best=Objective(value(bounds.best)),
            needed=Number(bounds.needed_gain),
            incumbent=Objective(value(bounds.incumbent)),
            later=Number(bounds.largest_later_decrease),
            own=Number(bounds.extrapolated_decrease),
        )

    def _stuck_text(self, trial: Trial, own: TrialProgress, siblings: Sequence[TrialProgress]) -> Message | None:
        steps = improvement_steps_of_siblings(own, len(own.steps) - 1, siblings, self.policy)
        if steps is None:
            return None
        return say(
            "{trial} is still where it began after {done} of its training; {left} of {count} completed trials left their first "
            "value, the last of them after {last}.",
            trial=Name(trial.name),
            done=Percent(min(1.0, own.steps[-1] / own.length)),
            left=len(steps),
            count=len(siblings),
            last=Percent(max(steps) / own.length),
        )

    def _diverging_text(self, trial: Trial, own: TrialProgress) -> Message | None:
        share = lost_share_if_diverging(own, len(own.steps) - 1, self.policy)
        if share is None:
            return None
        return say(
            "{trial} lost {share} of its improvement: {metric} went from {best} to {now}.",
            trial=Name(trial.name),
            share=Percent(min(1.0, share)),
            metric=Name(self.study.spec.objective.metric),
            best=Objective(self.study.objective_value(float(own.best[-1]))),
            now=Objective(self.study.objective_value(float(own.median_recent_costs[-1]))),
        )


def improvement_steps_of_siblings(
    trial: TrialProgress, at: int, siblings: Sequence[TrialProgress], policy: Policy
) -> list[float] | None:
    """Return the steps at which siblings left their first objective value if the trial is stuck at evaluation `at`; else None.

    A trial is stuck if at least half of its siblings left their first value, and the trial has stayed at its own first value longer
    than the slowest of these siblings, by the factor `exceedance_margin`.
    """
    if trial.steps[at] < MIN_STUCK_TRAINING_SHARE * trial.length:
        return None
    best = min(float(s.best[-1]) for s in siblings)
    if _first_improvement_step(trial, best) <= trial.steps[at]:
        return None
    steps = [step for s in siblings if (step := _first_improvement_step(s, best)) < math.inf]
    if len(steps) < max(1.0, 0.5 * len(siblings)):
        return None
    margin = exceedance_margin(len(steps), policy.max_false_stuck_share)
    return steps if trial.steps[at] >= margin * max(steps) else None


def _first_improvement_step(trial: TrialProgress, best: float) -> float:
    """Return the step of the trial's first clear improvement; inf if there is none. best: cost of the best sibling."""
    first_cost = float(trial.costs[0])
    improved_indices = np.flatnonzero(first_cost - trial.best > MIN_LEARNING_GAIN_SHARE * (first_cost - best))
    return float(trial.steps[improved_indices[0]]) if len(improved_indices) else math.inf


def lost_share_if_diverging(trial: TrialProgress, at: int, policy: Policy) -> float | None:
    """Return the lost share of a trial's improvement if the trial diverges at evaluation `at` and just before; else None."""
    count = policy.successive_evaluations
    lost_shares = [_lost_share_at(trial, k, 2 * count) for k in range(at, at - count, -1)]
    return None if None in lost_shares else lost_shares[0]


def _lost_share_at(trial: TrialProgress, at: int, min_points: int) -> float | None:
    costs_so_far = trial.costs[: max(at, -1) + 1]
    finite_costs = costs_so_far[np.isfinite(costs_so_far)]
    if len(finite_costs) < min_points:
        return None
    gained, lost = float(finite_costs[0] - trial.best[at]), float(trial.median_recent_costs[at] - trial.best[at])
    if not lost > MIN_LOST_IMPROVEMENT_SHARE * gained > 0:
        return None
    median_difference = float(np.median(np.abs(np.diff(finite_costs))))
    return lost / gained if lost > MIN_RISE_TO_NOISE * median_difference else None
