"""Which trials of a study failed, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.space import BoolArray, FloatArray
from advisor.stats import outliers
from advisor.study import Study


@dataclass(frozen=True)
class Failures:
    """Which trials failed, and how; each of shape (number of trials,). A trial that does not count (running, no data) did not."""

    diverged: BoolArray
    """Ended with a non-finite objective or loss."""
    crashed: BoolArray
    """Crashed or ran out of memory."""
    stuck: BoolArray
    """Uncharacteristically bad: never got better than at its first evaluation, far from all trials that did."""

    @property
    def any(self) -> BoolArray:
        """Failed one way or another."""
        return self.diverged | self.crashed | self.stuck


def failures(study: Study) -> Failures:
    """The failed trials of a study, each kind apart."""
    diverged = np.array([t.status == "diverged" for t in study.trials], dtype=np.bool_)
    crashed = np.array([t.status == "infeasible" for t in study.trials], dtype=np.bool_)
    diverged |= study.ended & ~crashed & ~np.isfinite(study.costs)
    starts = np.full(len(study.trials), np.nan)
    worse = np.zeros(len(study.trials), dtype=np.bool_)
    for trial in study.trials:
        curve = study.cost_curve(trial).finite
        if len(curve) > 1:
            starts[trial.index] = curve.values[0]
        worse[trial.index] = ends_above_start(study.curve(trial, "train_loss").values)
    return Failures(diverged, crashed, outliers.stuck(study.costs, starts, study.feasible, worse))


def ends_above_start(losses: FloatArray) -> bool:
    """Whether a training loss (n,) ends above where it began: the median of its last tenth above its first value."""
    late = losses[-max(len(losses) // 10, 1) :]
    return len(losses) >= 10 and not float(np.median(late)) <= losses[0]
