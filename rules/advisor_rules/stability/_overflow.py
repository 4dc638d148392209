"""Finds steps that a gradient scaler skipped although the loss scale was far too low to have caused the overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.model.space import FloatArray, IntArray
from advisor.model.study import Study, Trial

LARGEST_FLOAT16 = 65504.0
"""Largest finite float16 number."""
_LOSSES_PER_END = 5
"""Number of losses at the start and at the end of a training whose medians are compared."""


@dataclass(frozen=True, slots=True)
class ScalerOverflows:
    """The steps that the gradient scaler skipped in one trial."""

    trial: Trial
    steps: int
    """Number of training steps, including skipped steps."""
    skipped_steps: int
    late_skips_in_vain: int
    """Number of skipped steps in the second half of training at which the scaled gradient was far below the largest float16
    number."""
    first_step_after_skip: int
    """First completed step after a step was skipped in vain in the second half of training."""
    final_loss_scale: float
    """Loss scale at the end of training."""
    largest_gradient_norm: float
    """Largest gradient norm of a completed step, before clipping; NaN if unknown."""
    has_loss_exploded: bool
    """True if the training loss ended above its initial value."""

    @property
    def room(self) -> float:
        """Factor by which the largest known gradient norm, times the loss scale at the end of training, is below the largest
        float16 number."""
        return LARGEST_FLOAT16 / (self.final_loss_scale * self.largest_gradient_norm) if self.final_loss_scale > 0 else math.inf


def read_overflows(study: Study, trial: Trial, room: float) -> ScalerOverflows | None:
    """Return the skipped steps of a trial; None if it did not log both the loss scale and the skipped steps, or completed too
    few steps.

    A step was skipped in vain if the largest gradient norm so far, multiplied by the loss scale, was still `room` times below
    the largest float16 number. If gradient norms are unknown, a step was skipped in vain if the loss scale was below 1.
    """
    scales, skips = study.curve(trial, "loss_scale").finite, study.curve(trial, "skipped_steps").finite
    if len(scales) < 2 or len(scales) != len(skips):
        return None
    counts = np.rint(skips.values * np.diff(skips.steps, prepend=skips.steps[0] - 1)).clip(min=0)
    unlogged = max(_positive_or_zero(trial.fact("skipped_steps")) - counts.sum(), 0.0)
    limits = _max_scales_in_vain(study, trial, scales.steps, room)
    # The j-th skip before a logged row, counted backwards from the row, happened at 2^j times the row's scale. The j-th skip
    # after the last row happened at 2^(1 - j) times the scale of that row.
    far = np.floor(np.log2(limits / np.maximum(scales.values, 1e-300)))
    skipped_in_vain = np.clip(far, 0, counts)
    last_in_vain = max(unlogged - max(-far[-1], 0.0), 0.0)
    attempts = skips.steps - skips.steps[0] + 1 + np.cumsum(counts)
    total = float(attempts[-1] + unlogged)
    late = attempts > total / 2
    hits = np.flatnonzero(late & (skipped_in_vain > 0))
    late_share = min(max((total / 2 - float(attempts[-1])) / max(unlogged, 1.0), 0.0), 1.0)
    return ScalerOverflows(
        trial=trial,
        steps=round(total),
        skipped_steps=round(float(counts.sum() + unlogged)),
        late_skips_in_vain=round(float(skipped_in_vain[late].sum() + last_in_vain * (1 - late_share))),
        first_step_after_skip=int(skips.steps[hits[0]] if len(hits) else skips.steps[-1]),
        final_loss_scale=float(scales.values[-1] * 0.5 ** min(unlogged, 1000.0)),
        largest_gradient_norm=_largest_gradient_norm(study, trial),
        has_loss_exploded=_has_loss_exploded(study, trial),
    )


def _max_scales_in_vain(study: Study, trial: Trial, steps: IntArray, room: float) -> FloatArray:
    """Return, for each step, the largest loss scale at which a step counts as skipped in vain, shape (steps,)."""
    norms = study.peaks(trial, "grad_norm").finite
    if not len(norms) or not norms.values.max() > 0:
        return np.ones(len(steps))
    so_far = np.maximum.accumulate(norms.values)
    at = np.clip(np.searchsorted(norms.steps, steps, side="right") - 1, 0, len(so_far) - 1)
    limits: FloatArray = LARGEST_FLOAT16 / (room * np.maximum(so_far[at], 1e-300))
    return limits


def _largest_gradient_norm(study: Study, trial: Trial) -> float:
    norms = study.peaks(trial, "grad_norm").finite.values
    return float(norms.max()) if len(norms) else math.nan


def _has_loss_exploded(study: Study, trial: Trial) -> bool:
    losses = study.curve(trial, "train_loss").finite.values
    return len(losses) > 2 * _LOSSES_PER_END and bool(
        np.median(losses[-_LOSSES_PER_END:]) > np.median(losses[:_LOSSES_PER_END])
    )


def _positive_or_zero(value: float) -> float:
    return value if value > 0 else 0.0
