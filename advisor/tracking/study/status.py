"""Determines the end status of each trial."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from advisor import contract
from advisor.model.study import CurveBlock, Status
from advisor.tracking.runs import Run
from advisor.tracking.study import metric_names

_TAGGED: tuple[Status, ...] = ("complete", "diverged", "infeasible", "stopped", "no_data")
"""Statuses that are accepted from an adapter's tag."""


def trial_status(run: Run, blocks: Mapping[str, CurveBlock], objective: str, trial: int) -> Status:
    """Return the trial's end status: from an adapter's tag, else from MLflow's status and the objective's last value."""
    tag = run.tags.get(contract.TAG_STATUS)
    for status in _TAGGED:
        if tag == status:
            return status
    if run.status in ("RUNNING", "SCHEDULED"):
        return "running"
    if run.status == "FAILED":
        return "stopped" if _was_pruned(run) else "infeasible"
    curve = blocks[objective].curve(trial)
    if not len(curve):
        return "no_data"
    if not math.isfinite(curve.values[-1]) and not _training_was_finite(blocks, objective, trial):
        return "diverged"
    return "stopped" if run.status == "KILLED" else "complete"


def _training_was_finite(blocks: Mapping[str, CurveBlock], objective: str, trial: int) -> bool:
    """Return True if only the evaluation failed: the objective was finite before, and the training loss is finite to its end.

    A training loss that ends before the objective's last step is no evidence.
    """
    curve = blocks[objective].curve(trial)
    losses = [
        block.curve(trial)
        for name, block in blocks.items()
        if name != objective and metric_names.split_of(name) == "train" and metric_names.quantity(name) == ("loss",)
    ]
    finite = [c for c in losses if len(c) and np.isfinite(c.values).all() and c.steps[-1] >= curve.steps[-1]]
    return bool(np.isfinite(curve.values).any()) and bool(finite)


def _was_pruned(run: Run) -> bool:
    """Return True if a tuner's tag says that it pruned the run. Optuna, for example, prunes by raising an exception."""
    return run.tags.get("state", run.tags.get("trial_state", "")).upper().endswith("PRUNED")
