"""Reads each trial's gradient clipping, and chooses a remedy for trials that are unstable although they clip."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.stability import instability
from advisor.model import parameter_kinds
from advisor.model.change import Advise, Change, RunPlan
from advisor.model.message import Message, Number, Percent, say
from advisor.model.space import FloatArray, as_number
from advisor.model.study import Study, Trial
from advisor.model.words import plain_number
from advisor.stats import tails
from advisor.stats.estimates import p_value_of_share

MAX_CLIPPED_SHARE = 0.5
"""Maximum share of clipped updates at which a lower threshold is the remedy; from the Deep Learning Tuning Playbook."""
_MAX_CLIP_EXCESS = 1e-3
"""Maximum excess of logged gradient norms over the threshold, as a share of the threshold, if they were logged after clipping."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """Gradient clipping in one trial."""

    trial: Trial
    threshold: float
    """Gradient norm above which gradients are clipped; NaN if gradients are not clipped by their norm."""
    clipped_share: float
    """Share of clipped updates; NaN if unknown."""
    point_count: int
    """Number of logged points from which the share of clipped updates was computed; 0 if the trial is known not to clip."""

    def p_value(self, limit: float) -> float:
        """Return the probability of a clipped share of at least `clipped_share` if the true share is `limit`."""
        return p_value_of_share(self.clipped_share, self.point_count, limit)


def clipping_threshold(trial: Trial) -> float:
    """Return the clipping threshold of the trial, from logged facts or its hyperparameters; NaN if unknown."""
    logged_threshold = trial.fact("grad_clip_norm")
    if logged_threshold > 0:
        return logged_threshold
    for name, value in trial.params.items():
        # A switch such as `grad_clip: True` does not mean a threshold of 1.
        if parameter_kinds.is_clipping_threshold(name) and not isinstance(value, bool) and 0 < as_number(value) < math.inf:
            return as_number(value)
    return math.nan


def read_clipping(study: Study, trial: Trial) -> Clipping | None:
    """Return the trial's clipping, from logged clip flags or else gradient norms; None if the clipped share is unknown."""
    norm_limit = clipping_threshold(trial)
    clip_flags = study.curve(trial, "clipped").finite
    if len(clip_flags) >= tails.MIN_POINTS:
        step_gaps = np.diff(clip_flags.steps).astype(np.float64)  # weight each value by the number of steps in its window
        weights = np.concatenate([step_gaps[:1], step_gaps])
        return Clipping(trial, norm_limit, float(np.average(clip_flags.values, weights=weights)), len(clip_flags))
    gradient_norms = study.curve(trial, "grad_norm").finite.values
    if math.isfinite(norm_limit) and len(gradient_norms) >= tails.MIN_POINTS:
        clipped_share = float(np.mean(gradient_norms >= norm_limit * (1 - _MAX_CLIP_EXCESS)))
        return Clipping(trial, norm_limit, clipped_share, len(gradient_norms))
    does_not_clip = "schema" in trial.facts and not math.isfinite(norm_limit) and "grad_clip_value" not in trial.facts
    return Clipping(trial, math.nan, 0.0, 0) if does_not_clip else None


def read_clipping_threshold(study: Study, trial: Trial) -> Clipping | None:
    """Return the trial's clipping; its share is NaN if only the threshold is known. None if the threshold is unknown too."""
    norm_limit = clipping_threshold(trial)
    return read_clipping(study, trial) or (Clipping(trial, norm_limit, math.nan, 0) if math.isfinite(norm_limit) else None)


@computed
def unclipped_gradient_norms(study: Study) -> FloatArray:
    """Return the gradient norms of the best trials, after early training and before clipping; empty if no trial logged them.
    All advice on a clipping threshold uses these norms."""
    unclipped_trials = []
    for trial in study.trials:
        norms, limit = study.curve(trial, "grad_norm").finite.values, clipping_threshold(trial)
        # If norms were logged after clipping, their maximum is the threshold.
        if len(norms) and not abs(norms.max() - limit) <= _MAX_CLIP_EXCESS * limit:
            unclipped_trials.append(trial)
    return instability.late_gradient_norms(study, unclipped_trials)


def clipping_remedy(study: Study, present: Clipping, extreme: float = MAX_CLIPPED_SHARE) -> tuple[Message, tuple[Change, ...]]:
    """Return the remedy for a trial that is unstable although it clips: a lower threshold. If more than the share `extreme` of
    its updates are clipped, a lower threshold acts like a lower learning rate, so return a lower learning rate instead."""
    if present.clipped_share > extreme:
        action = say(
            "Warm up the learning rate longer, or lower the rate: more than {half} of the updates are clipped already.",
            half=Percent(extreme),
        )
        return action, (Advise(text=str(action)),)
    unclipped_norms = unclipped_gradient_norms(study)
    percentile_90 = float(np.quantile(unclipped_norms, 0.9)) if len(unclipped_norms) else math.inf
    lower_threshold = min(percentile_90, present.threshold / 3)
    action = say("Clip at a smaller norm.")
    if math.isfinite(lower_threshold):
        action = say("Clip at a smaller norm. Start with {norm}.", norm=Number(lower_threshold))
    if not math.isfinite(present.threshold):
        return action, (Advise(text=str(action)),)
    plan_numbers = {"threshold": present.threshold}
    if len(unclipped_norms) >= tails.MIN_POINTS:
        plan_numbers["p90"] = percentile_90
    why = f"Training is still unstable with clipping at {plain_number(present.threshold, 3)}"
    return action, (RunPlan(plan="clip", numbers=plan_numbers, why=why),)
