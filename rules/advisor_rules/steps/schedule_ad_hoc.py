"""Implements the rule `schedule-ad-hoc`."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.computed.steps import schedules
from advisor.computed.steps.schedules import schedules_of_good_trials
from advisor.engine.rule import Count, Rule, Share
from advisor.model.change import Advise, SetSchedule
from advisor.model.evidence import Evidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as Counted, Message, MessagePart, Name, Probability, join_items, say
from advisor.model.study import Study
from advisor_rules.steps._metric_reaction import find_metric_reaction


class ScheduleAdHoc(Rule):
    """The learning rate falls when a metric stops improving, not by a fixed schedule.

    ## What it looks at
    The rule reads the schedules that the five best trials logged, and counts those that watch a metric, such as reduce on
    plateau. If no schedule was logged, the rule examines the logged learning rates. Learning rates react to a metric if they
    fall at different steps in different trials, each time after the same number of evaluations without an improvement. A fixed
    staircase falls at the same steps in every trial.

    ## Why it matters
    The noise of the evaluations decides when the rate falls. Two runs of the same settings get different schedules, and the
    schedule of the best run does not suit another training. An automatic reaction to a metric makes runs hard to compare; a
    manual reaction is not repeatable.

    ## What to do
    Use a fixed schedule for studies and for results that others should repeat: a cosine or a linear decay to zero over the
    training. Otherwise, document how the rate reacts to the metric and with which settings, and log the learning rate.

    ## How sure
    A logged schedule is a fact, so confidence is 0.95 times the share of the examined trials whose schedule watches a metric.
    If only the logged rates show a reaction, confidence is 1 - p, where p is the probability that falls at random evaluations
    agree as often (exact Poisson binomial test). In simulated studies, the rule never fired with fixed staircases, and fired in
    at least 18 of 20 studies whose rate reacts to the loss.
    """

    playbook = "Why do some papers have complicated learning rate schedules?"
    goal = "efficiency"

    best: Count = 5
    """Maximum number of best trials to examine."""
    reach: Share = 0.5
    """Maximum difference in the objective between a good trial and the best trial, as a share of the best trial's improvement
    during training."""
    agree: Share = 0.8
    """Minimum share of falls of the learning rate that follow the same number of evaluations without improvement. Our
    choice."""
    false_alarms: Share = 0.05
    """Maximum probability of a finding in a study with fixed schedules."""

    def check(self, study: Study) -> Iterator[Finding]:
        good = schedules_of_good_trials(study, self.reach, self.best)
        if all(s.logged_kind is None and len(s.rates) < schedules.MIN_LOGGED_RATES for s in good):
            raise MissingData(
                "the schedule of the learning rate is unknown; log the rate at every step, as train/learning_rate (the advisor's "
                "training hook does)",
                needs="learning_rate",
            )
        watching = [s for s in good if s.logged_kind == "plateau"]
        if watching and 2 * len(watching) >= len(good):
            how = say("lowered by a scheduler that watches a metric, so chance decides when the rate falls")
            yield self._build_finding(study, good, watching, how, 0.95 * len(watching) / len(good))
            return
        unstated = [s for s in good if s.logged_kind is None]
        metric_reaction = find_metric_reaction(study, unstated)
        if (
            metric_reaction is None
            or metric_reaction.p_value > self.false_alarms
            or metric_reaction.falls_after_patience < self.agree * metric_reaction.total_falls
        ):
            return
        how = say(
            "lowered each time after {wait} without an improvement of {metric}",
            wait=Counted(metric_reaction.patience, "evaluation"),
            metric=Name(metric_reaction.metric),
        )
        hits = say("{hits} of {falls}", hits=metric_reaction.falls_after_patience, falls=metric_reaction.total_falls)
        rows = (("falls that came after exactly this wait", hits), ("p-value", Probability(metric_reaction.p_value)))
        yield self._build_finding(
            study, good, [s for s in unstated if len(s.stair_fall_steps())], how, 1 - metric_reaction.p_value, rows
        )

    def _build_finding(
        self,
        study: Study,
        good: list[schedules.Schedule],
        which: list[schedules.Schedule],
        how: Message,
        confidence: float,
        rows: tuple[tuple[str, MessagePart], ...] = (),
    ) -> Finding:
        many = say("{many} of the {good} best trials", many=len(which), good=len(good))
        metric = study.signals.get("learning_rate")
        noted = join_items(s.logged_kind or "none" for s in good)
        return self.finding(
            say(
                "The learning rate of {trials} is {how}.", trials=many if len(good) > 1 else Name(which[0].trial.name), how=how
            ),
            action="Fix the schedule before training: a cosine or a straight line to zero. Otherwise document the rule by "
            "which you lower the rate.",
            severity="note",
            confidence=min(confidence, 0.95),
            subject=metric,
            trials=[s.trial for s in which],
            evidence=(
                *([_learning_rate_curves(metric, which, how)] if metric is not None else []),
                table(("noted schedules", noted), *rows),
            ),
            changes=(
                SetSchedule(schedule={"kind": "cosine"}, why=f"The learning rate was {how}."),
                Advise(text="Before you publish results, log the learning rate and make its schedule repeatable."),
            ),
        )


def _learning_rate_curves(metric: str, which: list[schedules.Schedule], how: Message) -> Evidence:
    return curve_plot(
        metric,
        say("The learning rate is {how}.", how=how),
        [s.trial for s in which],
        marks=tuple(Mark(trial=s.trial.id, step=int(at), label="lowered") for s in which for at in s.stair_fall_steps()[:4]),
    )
