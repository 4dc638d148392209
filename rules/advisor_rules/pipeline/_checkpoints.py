"""The value of a trial that remains after training: in its checkpoints, or at its last step."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from advisor.model.space import as_number
from advisor.model.study import Curve, Study, Trial
from advisor.stats.curve import Rise, point_rise


@dataclass(frozen=True, slots=True)
class Remainder:
    """The best step of a trial, and the evaluation whose model remains."""

    trial: Trial
    curve: Curve
    logged: bool
    """Whether the run logged its checkpoints."""
    source: str
    """Where the remaining value comes from, as a phrase."""
    index: int
    """Index of the remaining evaluation; -1 if no checkpoint was kept."""
    rise: Rise | None
    """From the best level to the remaining value; None if no checkpoint was kept."""

    @property
    def p(self) -> float:
        """p-value of the rise; 0 if no checkpoint was kept."""
        return 0.0 if self.rise is None else self.rise.p

    @property
    def share(self) -> float:
        """The rise as a share of the curve's range."""
        return 1.0 if self.rise is None else self.rise.share

    @property
    def best(self) -> float:
        """The lowest cost."""
        return float(self.curve.values.min())

    @property
    def best_step(self) -> int:
        """The step of the lowest cost."""
        return int(self.curve.steps[int(np.argmin(self.curve.values))])

    @property
    def step(self) -> int:
        """The step of the remaining evaluation."""
        return int(self.curve.steps[self.index])


def read_remainder(study: Study, trial: Trial) -> Remainder | None:
    """What remains of the trial; None if its curve is too short."""
    curve = study.cost_curve(trial).finite
    logged = _checkpoints(trial)
    if logged is None:
        index, source = len(curve) - 1, "at its last step"
    else:
        steps, chosen = logged
        if not steps and chosen is None:
            return Remainder(trial, curve, True, "", -1, None)
        # A checkpoint has the value of the last evaluation up to its step.
        at = np.clip(np.searchsorted(curve.steps, steps if chosen is None else [chosen], side="right") - 1, 0, None)
        index = int(at[np.argmin(curve.values[at])])
        source = "in its best checkpoint" if chosen is None else "in the checkpoint that was chosen"
    rise = point_rise(curve.values, index)
    return None if rise is None else Remainder(trial, curve, logged is not None, source, index, rise)


def _checkpoints(trial: Trial) -> tuple[list[float], float | None] | None:
    """(steps of kept checkpoints, step of the chosen one) as logged; None if missing or unreadable."""
    try:
        noted = json.loads(trial.facts.get("checkpoints", ""))
        if noted["policy"] == "none":  # the hook kept none; the user may have kept some
            return None
        steps = [s for entry in noted["kept"] if math.isfinite(s := as_number(entry["step"]))]
        chosen = as_number(noted.get("chosen"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return steps, chosen if math.isfinite(chosen) else None
