"""Finds policies that are far from their reference and earn less than at their start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.reinforcement.policy import MIN_POINTS, LoggedSignal
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level


@dataclass(frozen=True, slots=True)
class Departure:
    """A trial whose policy left its reference for a lower reward."""

    trial: Trial
    step: int
    """First step at which the KL divergence exceeds the limit."""
    kl: float
    """Mean KL divergence over the second half of the training."""
    before: float
    """First mean reward."""
    after: float
    """Mean reward over the second half of the training."""
    p: float
    """Larger p-value of two tests: that the late KL divergence exceeds the limit, and that the late reward lies below the first
    reward.
    """


def departures(study: Study, divergences: Sequence[LoggedSignal], far: float, alpha: float) -> list[Departure]:
    """Return the trials whose policy departed from its reference by more than noise, in the given order."""
    found = (_departure_of_trial(study, entry, far) for entry in divergences)
    return [d for d in found if d is not None and d.p <= alpha]


def _departure_of_trial(study: Study, entry: LoggedSignal, far: float) -> Departure | None:
    reward = study.curve(entry.trial, "policy_reward").finite.values
    beyond = np.flatnonzero(entry.curve.values > far)
    if len(reward) < MIN_POINTS or not len(beyond):
        return None
    kl, late = mean_level(entry.curve.values[entry.part_of_points(0.5, 1.0)]), mean_level(reward[len(reward) // 2 :])
    first = MeanLevel(float(reward[0]), _noise(reward), len(reward) - 3.0)
    step = int(entry.curve.steps[beyond[0]])
    return Departure(entry.trial, step, kl.mean, first.mean, late.mean, max(kl.p_above(far), first.p_above_other(late)))


def _noise(reward: FloatArray) -> float:
    """Return the standard deviation of the reward's point-to-point noise. Unlike a robust estimate, it stays above 0 if the reward
    ends constant.
    """
    return math.sqrt(float(np.mean(np.diff(reward, 2) ** 2)) / 6)
