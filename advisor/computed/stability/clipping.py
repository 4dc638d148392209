"""Gradient clipping as trials had it: from which norm on, and how many of the updates it changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from advisor.computed.space import kinds
from advisor.computed.stability import instability
from advisor.model.space import FloatArray, as_number
from advisor.model.study import Study, Trial
from advisor.stats import jumps
from advisor.stats.ratios import chance_of_share

_EQUAL = 1e-3
"""Norms that exceed the threshold by no more, as a share of it, are those that were logged after they had been clipped to it."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """The clipping of one trial's updates."""

    trial: Trial
    threshold: float
    """Norm from which on gradients are clipped; NaN where they are not, or not by their norm."""
    share: float
    """Share of the updates that were clipped."""
    points: int
    """Logged points that the share comes from; 0 for a trial that is known not to clip."""

    def p(self, limit: float) -> float:
        """How often a trial with `limit` of its updates clipped would show as large a share."""
        return chance_of_share(self.share, self.points, limit)


def threshold(trial: Trial) -> float:
    """The gradient norm from which on the trial clipped, as noted or as a hyperparameter; NaN where none is known."""
    noted = trial.fact("grad_clip_norm")
    if noted > 0:
        return noted
    # A switch, grad_clip: True, is no norm of 1.
    given = [value for name, value in trial.params.items() if kinds.clips_norm(name) and not isinstance(value, bool)]
    named = (as_number(value) for value in given)
    return next((value for value in named if value > 0 and math.isfinite(value)), math.nan)


def read(study: Study, trial: Trial) -> Clipping | None:
    """The trial's clipping; None where nothing tells which of its updates were clipped.

    As the hook logged it, else by comparing the logged norms with the threshold.
    """
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


def of(study: Study, trial: Trial) -> Clipping | None:
    """As `read`, but a trial whose threshold is known counts too where nothing tells how much was clipped; its share is NaN."""
    limit = threshold(trial)
    return read(study, trial) or (Clipping(trial, limit, math.nan, 0) if math.isfinite(limit) else None)


def unclipped_norms(study: Study, clippings: Iterable[Clipping]) -> FloatArray:
    """The gradient norms before clipping of these trials after early training; without those that end at the threshold."""
    parts = []
    for clipping in clippings:
        norms = instability.late_norms(study, [clipping.trial])
        if len(norms) and not norms.max() <= clipping.threshold * (1 + _EQUAL):
            parts.append(norms)
    return np.concatenate(parts) if parts else np.empty(0)


def passing_outliers(
    study: Study, clipped: Clipping, chance: float, factor: float
) -> tuple[Clipping, jumps.Outliers, int] | None:
    """The outliers of the trial's gradient norm, and the step of the largest, where most of them pass below its threshold.

    chance, factor: as for `jumps.outliers`.
    """
    curve = instability.late_norm(study, clipped.trial)
    found = jumps.outliers(curve.values, chance, factor) if math.isfinite(clipped.threshold) else None
    if found is None or not len(found.indices):
        return None
    passing = curve.values[found.indices] < clipped.threshold
    return (clipped, found, int(curve.steps[found.indices[0]])) if 2 * passing.sum() > len(passing) else None
