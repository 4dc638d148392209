"""What is left of a trial when its training has ended: the value in its checkpoints, or at its last step."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np

from advisor.model.space import as_number
from advisor.model.study import Curve, Study, Trial
from advisor.stats.curve import Rise, point_rise


@dataclass(frozen=True, slots=True)
class Left:
    """The best step of a trial and what is left of it."""

    trial: Trial
    curve: Curve
    noted: bool
    """Whether the run noted its checkpoints."""
    source: str
    """Where the value that is left comes from."""
    left: int
    """Index of the evaluation that is left; -1 where none is."""
    rise: Rise | None

    @property
    def p(self) -> float:
        """p-value of the loss; 0 where nothing was kept."""
        return 0.0 if self.rise is None else self.rise.p

    @property
    def share(self) -> float:
        """The loss as a share of the curve's range."""
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
        """The step of the evaluation that is left."""
        return int(self.curve.steps[self.left])


def read_left(study: Study, trial: Trial) -> Left | None:
    """What is left of the trial; None where its curve is too short to tell."""
    curve = study.cost_curve(trial).finite
    noted = _checkpoints(trial)
    if noted is None:
        left, source = len(curve) - 1, "at its last step"
    else:
        steps, chosen = noted
        if not steps and chosen is None:
            return Left(trial, curve, True, "", -1, None)
        # A checkpoint has the value of the last evaluation up to its step.
        at = np.clip(np.searchsorted(curve.steps, steps if chosen is None else [chosen], side="right") - 1, 0, None)
        left = int(at[np.argmin(curve.values[at])])
        source = "in its best checkpoint" if chosen is None else "in the checkpoint that was chosen"
    rise = point_rise(curve.values, left)
    return None if rise is None else Left(trial, curve, noted is not None, source, left, rise)


def _checkpoints(trial: Trial) -> tuple[list[float], float | None] | None:
    """(steps kept, step chosen) as the run noted them; None where it noted none, or nothing that can be read."""
    try:
        noted = json.loads(trial.facts.get("checkpoints", ""))
        if noted["policy"] == "none":  # the hook kept none; the user may have kept some himself
            return None
        steps = [s for entry in noted["kept"] if math.isfinite(s := as_number(entry["step"]))]
        chosen = as_number(noted.get("chosen"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return steps, chosen if math.isfinite(chosen) else None
