"""Detects learning rates that fall in reaction to a metric, as under a scheduler such as reduce on plateau."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.computed.steps.schedules import MIN_LOGGED_RATES, Schedule
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats.ratios import chance_of_at_least

_MIN_RELATIVE_IMPROVEMENT = 1e-4
"""Minimum relative change of a metric that counts as an improvement; the usual default of schedulers that watch a metric."""


@dataclass(frozen=True, slots=True)
class MetricReaction:
    """A pattern in which the learning rate falls each time a metric has not improved for a fixed number of evaluations."""

    metric: str
    patience: int
    """Number of evaluations without an improvement before each fall."""
    falls_after_patience: int
    """Number of falls of the learning rate after exactly `patience` evaluations without an improvement of the metric."""
    total_falls: int
    """Total number of falls of the learning rate, over all trials."""
    p_value: float
    """p-value: probability that at least as many falls of the learning rate follow `patience` evaluations without improvement
    if falls come at random evaluations."""


def find_metric_reaction(study: Study, schedules: Sequence[Schedule]) -> MetricReaction | None:
    """Return the reaction of the learning rates to a metric; None if all rates fall at the same steps, as in a fixed schedule.

    Also return None if the learning rates fall too seldom.
    """
    staircases = [(s, falls) for s in schedules if len(falls := s.stair_fall_steps())]
    if sum(len(f) for _, f in staircases) < 3 or len({f[0] for _, f in staircases}) < 2:
        return None
    names = [study.signals.get(signal) for signal in ("valid_loss", "train_eval_loss", "train_objective")]
    metrics = list(dict.fromkeys([study.spec.objective.metric, *(n for n in names if n is not None)]))
    reactions = [r for m in metrics if (r := _reaction_to_metric(study, m, staircases)) is not None]
    best = min(reactions, key=lambda r: r.p_value, default=None)
    return None if best is None else replace(best, p_value=best.p_value * len(reactions))


def _reaction_to_metric(study: Study, metric: str, staircases: Sequence[tuple[Schedule, FloatArray]]) -> MetricReaction | None:
    waits: list[int] = []
    counts: list[FloatArray] = []
    for schedule, falls in staircases:
        curve = study.metric(schedule.trial, metric).finite
        costs = curve if study.minimize or metric != study.spec.objective.metric else -curve
        if len(costs) < MIN_LOGGED_RATES:
            continue
        indices = np.searchsorted(curve.steps, falls) - 1  # index of the last evaluation before each fall
        since = _evaluations_since_best(costs.values, set(indices.tolist()))
        waits += [int(since[i]) for i in indices if i >= 0]
        counts += [since] * int((indices >= 0).sum())
    if len(waits) < 3:
        return None
    patience = max(sorted(set(waits)), key=waits.count)
    chances = np.array([np.mean(since == patience) for since in counts])
    hits = waits.count(patience)
    # The patience is estimated from the first fall, so only later falls can test it.
    p = chance_of_at_least(hits - 1, np.sort(chances)[::-1][1:])
    return MetricReaction(metric, patience, hits, len(waits), p) if patience >= 1 else None


def _evaluations_since_best(costs: FloatArray, falls: set[int]) -> FloatArray:
    """Return, for each of n evaluations, the number of evaluations since the metric last improved or the learning rate last
    fell, counted as schedulers do."""
    best, since_last = math.inf, 0
    since = np.empty(len(costs))
    for i, cost in enumerate(costs.tolist()):
        improved = cost < best - _MIN_RELATIVE_IMPROVEMENT * abs(best) if math.isfinite(best) else True
        best, since_last = (cost, 0) if improved else (best, since_last + 1)
        since[i] = since_last
        if i in falls:
            since_last = 0
    return since
