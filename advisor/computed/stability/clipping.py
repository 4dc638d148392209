"""Gradient clipping of trials: the threshold, and the share of updates that it changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from advisor.computed.stability import instability
from advisor.model import parameter_kinds
from advisor.model.space import FloatArray, as_number
from advisor.model.study import Study, Trial
from advisor.stats import jumps
from advisor.stats.ratios import chance_of_share

_EQUAL = 1e-3
"""Maximum excess over the threshold, as a share of it, of norms that were logged after clipping."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """The clipping of one trial's updates."""

    trial: Trial
    threshold: float
    """Norm above which gradients are clipped; NaN if they are not, or not by their norm."""
    share: float
    """Share of clipped updates; NaN if unknown."""
    points: int
    """Logged points that the share comes from; 0 for a trial that is known not to clip."""

    def p(self, limit: float) -> float:
        """Probability that a trial with a true share of `limit` shows a share at least as large."""
        return chance_of_share(self.share, self.points, limit)


def threshold(trial: Trial) -> float:
    """The norm above which the trial clipped, as noted or as a hyperparameter; NaN if unknown."""
    noted = trial.fact("grad_clip_norm")
    if noted > 0:
        return noted
    # A switch, grad_clip: True, is no norm of 1.
    values = [
        value
        for name, value in trial.params.items()
        if parameter_kinds.clips_norm(name) and not isinstance(value, bool)
    ]
    named = (as_number(value) for value in values)
    return next((value for value in named if value > 0 and math.isfinite(value)), math.nan)


def read(study: Study, trial: Trial) -> Clipping | None:
    """The trial's clipping as the hook logged it, else from its norms and threshold; None if its clipped updates are unknown."""
    limit = threshold(trial)
    flags = study.curve(trial, "clipped").finite
    if len(flags) >= jumps.MIN_POINTS:
        gaps = np.diff(flags.steps).astype(np.float64)  # a window's mean stands for all of its steps
        weights = np.concatenate([gaps[:1], gaps])
        return Clipping(trial, limit, float(np.average(flags.values, weights=weights)), len(flags))
    norms = study.curve(trial, "grad_norm").finite.values
    if math.isfinite(limit) and len(norms) >= jumps.MIN_POINTS:
        return Clipping(trial, limit, float(np.mean(norms >= limit * (1 - _EQUAL))), len(norms))
    known = "schema" in trial.facts and not math.isfinite(limit) and "grad_clip_value" not in trial.facts
    return Clipping(trial, math.nan, 0.0, 0) if known else None


def read_threshold(study: Study, trial: Trial) -> Clipping | None:
    """As `read`, but also for a trial of which only the threshold is known; its share is NaN."""
    limit = threshold(trial)
    return read(study, trial) or (Clipping(trial, limit, math.nan, 0) if math.isfinite(limit) else None)


def unclipped_norms(study: Study, clippings: Iterable[Clipping]) -> FloatArray:
    """The unclipped gradient norms of the trials after early training; norms that were logged after clipping are left out."""
    parts = []
    for clipping in clippings:
        norms = instability.late_norms(study, [clipping.trial])
        if len(norms) and not norms.max() <= clipping.threshold * (1 + _EQUAL):
            parts.append(norms)
    return np.concatenate(parts) if parts else np.empty(0)
