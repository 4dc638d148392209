"""Finds trials that end with worse results and whose attention logits grow far beyond those of the good trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.model.finding import MissingData
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level, mean_level_with_trend

MIN_ATTENTION_LOGITS = 20
"""Minimum number of logged attention logits of a trial. Each quarter of the training must contain enough values to estimate the
noise."""

_N_INITIAL_LOSSES = 5
"""Number of losses at the start of a training whose median is the initial loss."""


@dataclass(frozen=True, slots=True)
class AttentionLogitLevels:
    """The largest attention logits of one trial, on a log scale, and a comparison of the trial's results with those of the best
    trial."""

    trial: Trial
    earlier_logits: MeanLevel
    """Level of the log of the largest attention logit in the second quarter of the training."""
    late: MeanLevel
    """Level of the log of the largest attention logit in the last quarter of the training."""
    worse_results_p_value: float
    """p-value of a test whether the trial's results in the second half of the training are worse than the best trial's at the
    same steps; 0 for a trial that diverged."""

    @property
    def size(self) -> float:
        """Geometric mean of the logits in the last quarter of the training."""
        return math.exp(self.late.mean)

    def growth_p_value(self, good_level: MeanLevel, factor: float) -> float:
        """Return the larger p-value of two tests: that the late logits exceed `factor` times the largest late logits of a good
        trial, and that the logits have grown."""
        shifted = MeanLevel(self.late.mean - math.log(factor), self.late.error, self.late.freedom)
        return max(shifted.p_value_above_other(good_level), self.late.p_value_above_other(self.earlier_logits))


def read_attention_logits(study: Study, material: float) -> list[AttentionLogitLevels]:
    """Return the logit levels of all trials that can be compared. Raises MissingData if there are too few.

    `material` is the minimum difference at which results count as worse, as a share of the best trial's gain.
    """
    ranked = study.ranked()
    failed = [t for t in study.trials if t.status in ("diverged", "not_learned")]
    found = [_attention_logit_levels(study, t, ranked[0], material) for t in [*ranked, *failed] if ranked]
    logged = [entry for entry in found if entry is not None]
    if not logged:
        raise MissingData(
            f"no trial logged {MIN_ATTENTION_LOGITS} values of the model's largest attention logit; log it as "
            "train/max_attention_logit (the maximum over all layers, in one metric), for example at each step",
            needs="design",
        )
    if logged[0].trial != ranked[0] or len(logged) < 2:
        raise MissingData("attention logits of the best trial and of a second one are needed to compare them", needs="trials")
    return logged


def _attention_logit_levels(study: Study, trial: Trial, best: Trial, material: float) -> AttentionLogitLevels | None:
    curve = study.peaks(trial, "attention_logit").finite
    values = np.log(curve.values[(curve.values > 0) & (curve.steps <= _last_step_before_divergence(study, trial))])
    p = _p_value_of_worse_results(study, trial, best, material)
    if len(values) < MIN_ATTENTION_LOGITS or p is None:
        return None
    quarter = len(values) // 4
    return AttentionLogitLevels(
        trial, mean_level_with_trend(values[quarter : 2 * quarter]), mean_level_with_trend(values[-quarter:]), p
    )


def _last_step_before_divergence(study: Study, trial: Trial) -> float:
    """Return the last step at which the training loss was at most its initial value; infinite if no loss was logged.

    If the loss explodes after this step, weights and logits may explode with it, whatever the cause.
    """
    losses = study.curve(trial, "train_loss").finite
    if not len(losses):
        return math.inf
    return float(losses.steps[losses.values <= np.median(losses.values[:_N_INITIAL_LOSSES])][-1])


def _p_value_of_worse_results(study: Study, trial: Trial, best: Trial, material: float) -> float | None:
    """Return the p-value of a test whether results are worse than those of the best trial by `material` times its gain; None
    for fewer than two results at common steps."""
    if trial.status == "diverged":
        return 0.0
    if trial == best:
        return 1.0
    cost, least = study.cost_curve(trial).finite, study.cost_curve(best).finite
    gain = float(least.values[0] - least.values.min())
    late = slice(len(cost) // 2, None)
    differences: FloatArray = cost.values[late] - np.interp(cost.steps[late], least.steps, least.values)
    return mean_level(differences).p_value_above(material * gain) if len(differences) >= 2 else None


def largest_good_logits(good: Sequence[AttentionLogitLevels]) -> MeanLevel:
    """Return the late logits of the good trial whose late logits are largest."""
    return max((entry.late for entry in good), key=lambda late: late.mean)
