"""Applies an early-stopping method to ended trials, to find out which trials the method would have stopped, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from advisor.engine.guard.policy import Policy, TrialProgress

Stopper: TypeAlias = Callable[[TrialProgress, int, Sequence[TrialProgress]], bool]
"""Function of (trial, 0-based evaluation, completed trials) that returns True to stop the trial after the evaluation."""


def guard_stopper(policy: Policy) -> Stopper:
    """Return a stopper of trials whose costs are not finite or that cannot become the best. The stopper remembers completed trials,
    so the list of completed trials may only grow between two calls."""
    siblings: list[TrialProgress] = []
    seen_count, are_siblings_sufficient = 0, False

    def should_stop(trial: TrialProgress, at: int, completed: Sequence[TrialProgress]) -> bool:
        nonlocal seen_count, are_siblings_sufficient
        if is_not_finite(trial, at):
            return True
        if len(completed) > seen_count:
            siblings.extend(s for s in completed[seen_count:] if np.isfinite(s.best[-1]))
            seen_count = len(completed)
            are_siblings_sufficient = len(siblings) >= policy.siblings and policy.has_enough_evaluations(siblings)
        return are_siblings_sufficient and policy.bounds_if_doomed(trial, at, siblings) is not None

    return should_stop


def is_not_finite(trial: TrialProgress, at: int) -> bool:
    """Return True if the last two costs up to evaluation `at` are not finite; a single one may come from a failed evaluation."""
    return at >= 1 and not np.isfinite(trial.costs[at - 1 : at + 1]).any()


def replay_trials(trials: Sequence[TrialProgress], stops: Stopper, workers: int = 1) -> list[int]:
    """Return the number of evaluations after which each trial ends. Trials start in the given order; `workers` trials run at the
    same time, and all steps take equally long."""
    end_evaluations = [len(t.steps) for t in trials]
    completed: list[TrialProgress] = []
    waiting_trials = iter(range(len(trials)))
    evaluation_queue: list[tuple[float, int, int, float]] = []

    def begin(at: float) -> None:
        if (trial := next(waiting_trials, None)) is not None:
            heapq.heappush(evaluation_queue, (at + float(trials[trial].steps[0]), trial, 0, at))

    for _ in range(workers):
        begin(0.0)
    while evaluation_queue:
        now, trial, k, began = heapq.heappop(evaluation_queue)
        run = trials[trial]
        if stops(run, k, completed):
            end_evaluations[trial] = k + 1
        elif k + 1 == len(run.steps):
            completed.append(run)
        else:
            heapq.heappush(evaluation_queue, (began + float(run.steps[k + 1]), trial, k + 1, began))
            continue
        begin(now)
    return end_evaluations
