"""Which trials of a study failed, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.model.space import BoolArray, FloatArray
from advisor.model.study import Study
from advisor.stats import outliers

MATERIAL = 0.1
"""Minimum rise of a training loss that counts as failure, as a share of the largest fall in any successful trial."""


@dataclass(frozen=True)
class Failures:
    """Which trials failed, by kind; each of shape (number of trials,). Running trials and trials without data did not fail."""

    diverged: BoolArray
    """Ended with a non-finite objective or loss."""
    crashed: BoolArray
    """Crashed or ran out of memory."""
    out_of_memory: BoolArray
    """Crashed trials that reported it."""
    stuck: BoolArray
    """Learned nothing: never better than at the first evaluation, and the training loss rose or the result is an outlier."""

    @property
    def any(self) -> BoolArray:
        """Failed in any of these ways."""
        return self.diverged | self.crashed | self.stuck


@computed
def failures(study: Study) -> Failures:
    """Return which trials of a study failed, by kind."""
    count = len(study.trials)
    diverged = np.array([t.status == "diverged" for t in study.trials], dtype=np.bool_)
    crashed = np.array([t.status == "infeasible" for t in study.trials], dtype=np.bool_)
    memory = np.array(
        [t.facts.get("error", "").lower().startswith("out of memory") for t in study.trials], dtype=np.bool_
    )
    diverged |= study.ended & ~crashed & ~np.isfinite(study.costs)
    starts, rises, drops = np.full(count, np.nan), np.zeros(count), np.zeros(count)
    for trial in study.trials:
        curve = study.cost_curve(trial).finite
        if len(curve) > 1:
            starts[trial.index] = curve.values[0]
        rises[trial.index], drops[trial.index] = rise_and_drop(study.curve(trial, "train_loss").values)
    drop = np.max(drops[study.feasible], initial=0.0)
    worse = ~(rises <= MATERIAL * drop) & (rises != 0)
    return Failures(diverged, crashed, crashed & memory, outliers.stuck(study.costs, starts, study.feasible, worse))


def rise_and_drop(losses: FloatArray) -> tuple[float, float]:
    """Return how far a training loss (n,) ended above its first value (median of its last tenth) and the largest fall below it.

    (0, 0) for fewer than 10 points. The rise of a loss that ends non-finite is inf.
    """
    if len(losses) < 10 or not np.isfinite(losses[0]):
        return 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        rise = float(np.median(losses[-(len(losses) // 10) :]) - losses[0])
        fall = float(losses[0] - np.nanmin(losses))
    return (rise if np.isfinite(rise) else np.inf), (fall if np.isfinite(fall) else 0.0)
