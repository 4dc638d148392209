"""The model that a trial keeps after training: its best checkpoint or its last step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.computed.pipeline import checkpoints
from advisor.model.study import Curve, Study, Trial
from advisor.stats.curve import LevelRise, rise_at_point


@dataclass(frozen=True, slots=True)
class KeptModel:
    """The model that a trial keeps, compared with the trial's best step."""

    trial: Trial
    cost_curve: Curve
    has_logged_checkpoints: bool
    """True if the run logged its checkpoints."""
    source_phrase: str
    """Phrase that states which step or checkpoint the kept model comes from."""
    evaluation_index: int
    """Index of the kept model's evaluation in the trial's curve; -1 if no checkpoint was kept."""
    rise_from_best: LevelRise | None
    """Rise of the cost from the best level of the curve to the kept model; None if no checkpoint was kept."""

    @property
    def p_value(self) -> float:
        """p-value of the rise of the cost from the best level of the curve to the kept model; 0 if no checkpoint was kept."""
        return 0.0 if self.rise_from_best is None else self.rise_from_best.p_value

    @property
    def share(self) -> float:
        """Rise of the cost from the best level of the curve to the kept model, as a share of the curve's range."""
        return 1.0 if self.rise_from_best is None else self.rise_from_best.share

    @property
    def best(self) -> float:
        """Lowest cost of the trial."""
        return float(self.cost_curve.values.min())

    @property
    def best_step(self) -> int:
        """Step of the lowest cost."""
        return int(self.cost_curve.steps[int(np.argmin(self.cost_curve.values))])

    @property
    def step(self) -> int:
        """Step of the kept model's evaluation."""
        return int(self.cost_curve.steps[self.evaluation_index])


def read_kept_model(study: Study, trial: Trial) -> KeptModel | None:
    """Return the model that the trial keeps; None if its curve is too short."""
    curve = study.cost_curve(trial).finite
    found = checkpoints.logged_checkpoints(trial)
    if found is None:
        index, source = len(curve) - 1, "at its last step"
    elif (best := checkpoints.best_checkpoint(study, trial)) is None:
        return KeptModel(trial, curve, True, "", -1, None)
    else:
        index = checkpoints.evaluation_index(curve, best[0])
        source = "in its best checkpoint" if found.chosen_step is None else "in the checkpoint that was chosen"
    rise = rise_at_point(curve.values, index)
    return None if rise is None else KeptModel(trial, curve, found is not None, source, index, rise)
