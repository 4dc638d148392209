"""Decides which trials of earlier launches a new launch begins again. By default, these are failed trials that logged nothing;
the option `--retry` selects others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from advisor.tracking.study.metric_names import is_window_or_system_metric

FAILED_STATUSES = ("infeasible", "no_data")
"""Statuses of trials that have no result because of an error in the training script or in its command. A diverged trial is not
among them, because it has a result."""
_MAX_LISTED_METRICS = 8
"""Maximum number of metrics in a message."""


@dataclass(frozen=True)
class RetryPolicy:
    """Decides which trials of earlier launches this launch begins again. MLflow keeps the old runs of trials that are begun
    again, marked as deleted."""

    command: str | None = None
    """Fingerprint of this launch's command, which its claims record; None for runs in a Python loop."""
    trials: Literal["none", "silent", "failed", "all"] = "none"
    """Which trials to begin again. silent: failed trials that logged nothing, unless their launcher still runs · failed: all
    failed trials · all: all ended trials, unless their launcher still runs"""

    def begins_trial_again(self, status: str, metrics: Iterable[str]) -> bool:
        """Return True if this launch begins a trial of an earlier launch again. metrics: names of the metrics that the trial
        logged."""
        if self.trials == "all":
            return True
        if status not in FAILED_STATUSES or self.trials == "none":
            return False
        return self.trials == "failed" or not training_metric_names(metrics)


def training_metric_names(metrics: Iterable[str]) -> list[str]:
    """Return the sorted names of the metrics that the training script logged, without device metrics and without minima and
    maxima over logging windows."""
    return sorted(m for m in metrics if not (is_window_or_system_metric(m) or m.startswith("device/")))


def missing_objective_reason(objective: str, metrics: Iterable[str], stated: str | None) -> str:
    """Return the reason why a trial has no value of the objective, and suggest the metric that the user probably meant.

    stated: objective that the training script itself declared; None if it declared none.
    """
    logged = training_metric_names(metrics)
    if not logged:
        return (
            f"{objective} was never logged, nor was any other metric of the training; it must log into the MLflow run that "
            "MLFLOW_RUN_ID names (our hook and mlflow.start_run() do so)"
        )
    shown = (
        [*logged[:_MAX_LISTED_METRICS], f"{len(logged) - _MAX_LISTED_METRICS} more"]
        if len(logged) > _MAX_LISTED_METRICS
        else logged
    )
    nearest = [stated] if stated in logged else difflib.get_close_matches(objective, logged, n=1)
    advice = f": set `objective.metric: {nearest[0]}` in the study file" if nearest else ""
    return f"{objective} was never logged; logged: {', '.join(shown)}{advice}"
