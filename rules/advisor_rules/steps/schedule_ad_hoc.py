from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from advisor.computed.steps import schedules
from advisor.computed.steps.schedules import Schedule, schedules_of_good_trials
from advisor.engine.rule import RuleOnGoodTrials, Share
from advisor.model.change import Advise, SetSchedule
from advisor.model.evidence import Evidence, Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count as Counted, Message, MessagePart, Name, Probability, join_items, say
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats.estimates import chance_of_at_least


class ScheduleAdHoc(RuleOnGoodTrials):
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

    agree: Share = 0.8
    """Minimum share of falls of the learning rate that follow the same number of evaluations without improvement. Our
    choice."""
    false_alarms: Share = 0.05
    """Maximum probability of a finding in a study with fixed schedules."""

    def check(self, study: Study) -> Iterator[Finding]:
        good_schedules = schedules_of_good_trials(study, self.reach, self.best)
        if all(s.logged_kind is None and len(s.rates) < schedules.MIN_LOGGED_RATES for s in good_schedules):
            raise MissingData(
                "the schedule of the learning rate is unknown; log the rate at every step, as train/learning_rate (the advisor's "
                "training hook does)",
                needs="learning_rate",
            )
        watching = [s for s in good_schedules if s.logged_kind == "plateau"]
        if watching and 2 * len(watching) >= len(good_schedules):
            predicate = say("lowered by a scheduler that watches a metric, so chance decides when the rate falls")
            yield self._build_finding(study, good_schedules, watching, predicate, 0.95 * len(watching) / len(good_schedules))
            return
        unlogged = [s for s in good_schedules if s.logged_kind is None]
        reaction = _find_metric_reaction(study, unlogged)
        if reaction is None or reaction.p_value > self.false_alarms or reaction.hits < self.agree * reaction.falls:
            return
        text = "lowered each time after {wait} without an improvement of {metric}"
        predicate = say(text, wait=Counted(reaction.patience, "evaluation"), metric=Name(reaction.metric))
        hits = say("{hits} of {falls}", hits=reaction.hits, falls=reaction.falls)
        rows = (("falls of the learning rate after exactly this wait", hits), ("p-value", Probability(reaction.p_value)))
        falling_schedules = [s for s in unlogged if len(s.stair_fall_steps())]
        yield self._build_finding(study, good_schedules, falling_schedules, predicate, 1 - reaction.p_value, rows)

    def _build_finding(
        self,
        study: Study,
        good: list[Schedule],
        reported: list[Schedule],
        predicate: Message,
        confidence: float,
        rows: tuple[tuple[str, MessagePart], ...] = (),
    ) -> Finding:
        trials, metric = [s.trial for s in reported], study.signals.get("learning_rate")
        evidence: list[Evidence] = [table(("logged schedules", join_items(s.logged_kind or "none" for s in good)), *rows)]
        if metric is not None:
            marks = [Mark(trial=s.trial.id, step=int(at), label="lowered") for s in reported for at in s.stair_fall_steps()[:4]]
            evidence.insert(0, curve_plot(metric, say("The learning rate is {how}.", how=predicate), trials, marks=marks))
        trials_text = say("{many} of the {good} best trials", many=len(reported), good=len(good))
        which_trials = trials_text if len(good) > 1 else Name(trials[0].name)
        return self.finding(
            say("The learning rate of {trials} is {how}.", trials=which_trials, how=predicate),
            action="Fix the schedule before training: a cosine or a straight line to zero. Otherwise document the rule by "
            "which you lower the rate.",
            severity="note",
            confidence=min(confidence, 0.95),
            subject=metric,
            trials=trials,
            evidence=evidence,
            changes=(
                SetSchedule(schedule={"kind": "cosine"}, why=f"The learning rate was {predicate}."),
                Advise(text="Before you publish results, log the learning rate and make its schedule repeatable."),
            ),
        )


_MIN_RELATIVE_IMPROVEMENT = 1e-4
"""Minimum relative change of a metric that counts as an improvement; the usual default of schedulers that watch a metric."""


class _MetricReaction(NamedTuple):
    """A pattern in which the learning rate falls each time a metric has not improved for a fixed number of evaluations."""

    metric: str
    patience: int
    """Number of evaluations without an improvement before each fall."""
    hits: int
    """Number of falls of the learning rate after exactly `patience` evaluations without an improvement."""
    falls: int
    p_value: float


def _find_metric_reaction(study: Study, unlogged: Sequence[Schedule]) -> _MetricReaction | None:
    """Return the reaction of the learning rates to a metric; None if the rates fall too seldom, or all at the same steps as in
    a fixed schedule."""
    staircases = [(s, falls) for s in unlogged if len(falls := s.stair_fall_steps())]
    if sum(len(f) for _, f in staircases) < 3 or len({f[0] for _, f in staircases}) < 2:
        return None
    names = [study.signals.get(signal) for signal in ("valid_loss", "train_eval_loss", "train_objective")]
    metrics = list(dict.fromkeys([study.spec.objective.metric, *(n for n in names if n is not None)]))
    reactions = [r for m in metrics if (r := _reaction_to_metric(study, m, staircases)) is not None]
    best = min(reactions, key=lambda r: r.p_value, default=None)
    return None if best is None else best._replace(p_value=best.p_value * len(reactions))


def _reaction_to_metric(study: Study, metric: str, staircases: Sequence[tuple[Schedule, FloatArray]]) -> _MetricReaction | None:
    waits: list[int] = []
    since_best_of_falls: list[FloatArray] = []
    for schedule, falls in staircases:
        curve = study.metric(schedule.trial, metric).finite
        costs = curve if study.minimize or metric != study.spec.objective.metric else -curve
        if len(costs) < schedules.MIN_LOGGED_RATES:
            continue
        indices = np.searchsorted(curve.steps, falls) - 1  # index of the last evaluation before each fall
        evaluations_since_best = _evaluations_since_best(costs.values, set(indices.tolist()))
        waits += [int(evaluations_since_best[i]) for i in indices if i >= 0]
        since_best_of_falls += [evaluations_since_best] * int((indices >= 0).sum())
    if len(waits) < 3:
        return None
    patience = max(sorted(set(waits)), key=waits.count)
    chances = np.array([np.mean(evaluations_since_best == patience) for evaluations_since_best in since_best_of_falls])
    hits = waits.count(patience)
    # The patience is estimated from the first fall, so only later falls can test it.
    p = chance_of_at_least(hits - 1, np.sort(chances)[::-1][1:])
    return _MetricReaction(metric, patience, hits, len(waits), p) if patience >= 1 else None


def _evaluations_since_best(costs: FloatArray, falls: set[int]) -> FloatArray:
    """Return, for each of n evaluations, how many came since the metric last improved or the learning rate last fell."""
    best_cost, count = math.inf, 0
    counts = np.empty(len(costs))
    for i, cost in enumerate(costs.tolist()):
        is_better = cost < best_cost - _MIN_RELATIVE_IMPROVEMENT * abs(best_cost) if math.isfinite(best_cost) else True
        best_cost, count = (cost, 0) if is_better else (best_cost, count + 1)
        counts[i] = count
        if i in falls:
            count = 0
    return counts
