"""The value that a trial keeps after training: the value of its best checkpoint or of its last step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.model.space import as_number
from advisor.model.study import Curve, Study, Trial
from advisor.stats.curve import Rise, point_rise


@dataclass(frozen=True, slots=True)
class Remainder:
    """The best step of a trial, and the evaluation of the model that it keeps."""

    trial: Trial
    curve: Curve
    logged: bool
    """True if the run logged its checkpoints."""
    source: str
    """Origin of the kept value, as a phrase."""
    index: int
    """Index of the kept model's evaluation; -1 if no checkpoint was kept."""
    rise: Rise | None
    """Rise from the best level to the kept value; None if no checkpoint was kept."""

    @property
    def p(self) -> float:
        """p-value of the rise; 0 if no checkpoint was kept."""
        return 0.0 if self.rise is None else self.rise.p

    @property
    def share(self) -> float:
        """Rise to the kept value as a share of the curve's range."""
        return 1.0 if self.rise is None else self.rise.share

    @property
    def best(self) -> float:
        """Lowest cost of the trial."""
        return float(self.curve.values.min())

    @property
    def best_step(self) -> int:
        """Step of the lowest cost."""
        return int(self.curve.steps[int(np.argmin(self.curve.values))])

    @property
    def step(self) -> int:
        """Step of the kept model's evaluation."""
        return int(self.curve.steps[self.index])


def read_remainder(study: Study, trial: Trial) -> Remainder | None:
    """Return the value that the trial keeps; None if its curve is too short."""
    curve = study.cost_curve(trial).finite
    logged = _checkpoints(trial)
    if logged is None:
        index, source = len(curve) - 1, "at its last step"
    else:
        steps, chosen = logged
        if not steps and chosen is None:
            return Remainder(trial, curve, True, "", -1, None)
        # A checkpoint takes the value of the last evaluation at or before its step.
        at = np.clip(np.searchsorted(curve.steps, steps if chosen is None else [chosen], side="right") - 1, 0, None)
        index = int(at[np.argmin(curve.values[at])])
        source = "in its best checkpoint" if chosen is None else "in the checkpoint that was chosen"
    rise = point_rise(curve.values, index)
    return None if rise is None else Remainder(trial, curve, logged is not None, source, index, rise)


def _checkpoints(trial: Trial) -> tuple[list[float], float | None] | None:
    """Return (steps of kept checkpoints, step of the chosen one) as logged; None if missing or unreadable."""
    try:
        noted = trial.parsed_fact("checkpoints")
        if noted["policy"] == "none":  # the hook kept no checkpoints, but the user may have
            return None
        steps = [s for entry in noted["kept"] if math.isfinite(s := as_number(entry["step"]))]
        chosen = as_number(noted.get("chosen"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return steps, chosen if math.isfinite(chosen) else None
