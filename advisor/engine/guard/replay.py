"""Applies an early-stopping method to ended trials, to find which ones it would have stopped, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from advisor.engine.guard.policy import Policy, TrialProgress

Stopper: TypeAlias = Callable[[TrialProgress, int, Sequence[TrialProgress]], bool]
"""An early-stopping method: a function of (trial, 0-based evaluation, completed trials) that returns True to stop the trial
after this evaluation."""


def guard_stopper(policy: Policy) -> Stopper:
    """Return a stopper of trials that are not finite or cannot become the best. It remembers completed trials, so their list
    may only grow between two calls."""
    siblings: list[TrialProgress] = []
    seen, enough = 0, False

    def stops(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        nonlocal seen, enough
        if not_finite(trial, at):
            return True
        if len(completed) > seen:
            siblings.extend(s for s in completed[seen:] if np.isfinite(s.best[-1]))
            seen = len(completed)
            enough = len(siblings) >= policy.siblings and policy.has_enough_evaluations(siblings)
        return enough and policy.bounds_if_doomed(trial, at, siblings) is not None

    return stops


def not_finite(trial: TrialProgress, at: int) -> bool:
    """Return whether the last two evaluations up to `at` are not finite; a single one may come from a failed evaluation."""
    return at >= 1 and not np.isfinite(trial.costs[at - 1 : at + 1]).any()


def replay_trials(trials: Sequence[TrialProgress], stops: Stopper, workers: int = 1) -> list[int]:
    """Return the number of evaluations after which each trial ends. Trials start in the given order, `workers` of them run at
    the same time, and all steps take equally long."""
    ends = [len(t.steps) for t in trials]
    completed: list[TrialProgress] = []
    waiting = iter(range(len(trials)))
    events: list[tuple[float, int, int, float]] = []

    def begin(at: float) -> None:
        if (trial := next(waiting, None)) is not None:
            heapq.heappush(events, (at + float(trials[trial].steps[0]), trial, 0, at))

    for _ in range(workers):
        begin(0.0)
    while events:
        now, trial, k, began = heapq.heappop(events)
        run = trials[trial]
        if stops(run, k, completed):
            ends[trial] = k + 1
        elif k + 1 == len(run.steps):
            completed.append(run)
        else:
            heapq.heappush(events, (began + float(run.steps[k + 1]), trial, k + 1, began))
            continue
        begin(now)
    return ends
