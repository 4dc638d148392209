"""The model that a trial keeps after training: its best checkpoint or its last step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.model.space import as_number
from advisor.model.study import Curve, Study, Trial
from advisor.stats.curve import Rise, point_rise


@dataclass(frozen=True, slots=True)
class KeptModel:
    """The model that a trial keeps, compared with the trial's best step."""

    trial: Trial
    curve: Curve
    logged: bool
    """True if the run logged its checkpoints."""
    source: str
    """Origin of the kept value, as a phrase."""
    index: int
    """Index of the evaluation of the kept model; -1 if no checkpoint was kept."""
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


def read_kept_model(study: Study, trial: Trial) -> KeptModel | None:
    """Return the model that the trial keeps; None if its curve is too short."""
    curve = study.cost_curve(trial).finite
    checkpoints = _logged_checkpoints(trial)
    if checkpoints is None:
        index, source = len(curve) - 1, "at its last step"
    else:
        steps, chosen_step = checkpoints
        if not steps and chosen_step is None:
            return KeptModel(trial, curve, True, "", -1, None)
        # The value of a checkpoint is that of the last evaluation at or before its step.
        indices = np.clip(
            np.searchsorted(curve.steps, steps if chosen_step is None else [chosen_step], side="right") - 1, 0, None
        )
        index = int(indices[np.argmin(curve.values[indices])])
        source = "in its best checkpoint" if chosen_step is None else "in the checkpoint that was chosen"
    rise = point_rise(curve.values, index)
    return None if rise is None else KeptModel(trial, curve, checkpoints is not None, source, index, rise)


def _logged_checkpoints(trial: Trial) -> tuple[list[float], float | None] | None:
    """Return (steps of kept checkpoints, step of the chosen one) as logged; None if missing or unreadable."""
    try:
        fact = trial.parsed_fact("checkpoints")
        if fact["policy"] == "none":  # the hook kept no checkpoints, but the user may have kept some
            return None
        steps = [s for entry in fact["kept"] if math.isfinite(s := as_number(entry["step"]))]
        chosen_step = as_number(fact.get("chosen"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return steps, chosen_step if math.isfinite(chosen_step) else None
