"""Reads each trial's gradient clipping, and chooses a remedy for trials that are unstable in spite of it."""

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
"""Maximum clipped share at which a lower threshold is the remedy; from the Deep Learning Tuning Playbook."""
_MAX_CLIP_EXCESS = 1e-3
"""Norms that never exceed the threshold by more than this share of it were logged after clipping."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """Gradient clipping in one trial."""

    trial: Trial
    threshold: float
    """Gradient norm above which gradients are clipped; NaN if they are not clipped by their norm."""
    clipped_share: float
    """Share of clipped updates; NaN if unknown."""
    point_count: int
    """Number of logged points from which the share of clipped updates was computed; 0 if the trial is known not to clip."""

    def p_value(self, limit: float) -> float:
        """Return the probability of at least this clipped share if the true share is `limit`."""
        return p_value_of_share(self.clipped_share, self.point_count, limit)


def threshold(trial: Trial) -> float:
    """Return the clipping threshold of the trial, from logged facts or its hyperparameters; NaN if unknown."""
    norm = trial.fact("grad_clip_norm")
    if norm > 0:
        return norm
    for name, value in trial.params.items():
        # A switch such as `grad_clip: True` does not mean a threshold of 1.
        if parameter_kinds.is_clipping_threshold(name) and not isinstance(value, bool) and 0 < as_number(value) < math.inf:
            return as_number(value)
    return math.nan


def read_clipping(study: Study, trial: Trial) -> Clipping | None:
    """Return the trial's clipping, from logged clip flags or else gradient norms; None if the clipped share is unknown."""
    limit = threshold(trial)
    flags = study.curve(trial, "clipped").finite
    if len(flags) >= tails.MIN_POINTS:
        gaps = np.diff(flags.steps).astype(np.float64)  # weight each value by the number of steps in its window
        weights = np.concatenate([gaps[:1], gaps])
        return Clipping(trial, limit, float(np.average(flags.values, weights=weights)), len(flags))
    norms = study.curve(trial, "grad_norm").finite.values
    if math.isfinite(limit) and len(norms) >= tails.MIN_POINTS:
        return Clipping(trial, limit, float(np.mean(norms >= limit * (1 - _MAX_CLIP_EXCESS))), len(norms))
    does_not_clip = "schema" in trial.facts and not math.isfinite(limit) and "grad_clip_value" not in trial.facts
    return Clipping(trial, math.nan, 0.0, 0) if does_not_clip else None


def read_clipping_threshold(study: Study, trial: Trial) -> Clipping | None:
    """Return the clipping with a share of NaN if only the threshold is known; None if even that is unknown."""
    limit = threshold(trial)
    return read_clipping(study, trial) or (Clipping(trial, limit, math.nan, 0) if math.isfinite(limit) else None)


@computed
def unclipped_gradient_norms(study: Study) -> FloatArray:
    """Return the best trials' gradient norms before clipping and after early training, from which all advice on a threshold
    comes; empty if no trial logged them."""
    unclipped = []
    for trial in study.trials:
        norms, limit = study.curve(trial, "grad_norm").finite.values, threshold(trial)
        # If norms were logged after clipping, their maximum is the threshold.
        if len(norms) and not abs(norms.max() - limit) <= _MAX_CLIP_EXCESS * limit:
            unclipped.append(trial)
    return instability.late_gradient_norms(study, unclipped)


def clipping_remedy(study: Study, present: Clipping, extreme: float = MAX_CLIPPED_SHARE) -> tuple[Message, tuple[Change, ...]]:
    """Return the remedy for a trial that is unstable although it clips: a lower threshold or, if more than the share `extreme`
    of its updates are clipped so that it would only act like one, a lower learning rate."""
    if present.clipped_share > extreme:
        action = say(
            "Warm up the learning rate longer, or lower the rate: more than {half} of the updates are clipped already.",
            half=Percent(extreme),
        )
        return action, (Advise(text=str(action)),)
    norms = unclipped_gradient_norms(study)
    lower = min(float(np.quantile(norms, 0.9)) if len(norms) else math.inf, present.threshold / 3)
    action = say("Clip at a smaller norm.")
    if math.isfinite(lower):
        action = say("Clip at a smaller norm. Start with {norm}.", norm=Number(lower))
    if not math.isfinite(present.threshold):
        return action, (Advise(text=str(action)),)
    numbers = {"threshold": present.threshold}
    if len(norms) >= tails.MIN_POINTS:
        numbers["p90"] = float(np.quantile(norms, 0.9))
    why = f"Training is still unstable with clipping at {plain_number(present.threshold, 3)}"
    return action, (RunPlan(plan="clip", numbers=numbers, why=why),)
