"""Finds policies that are far from their reference and earn a lower reward than at their start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.reinforcement.policy import MIN_SIGNAL_POINTS, LoggedSignal
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level


@dataclass(frozen=True, slots=True)
class PolicyDeparture:
    """A trial whose policy moved far from its reference and earns a lower reward than at its start."""

    trial: Trial
    step: int
    """First step at which the KL divergence exceeds the limit."""
    late_kl: float
    """Mean KL divergence over the second half of the training."""
    first_reward: float
    """First mean reward."""
    late_reward: float
    """Mean reward over the second half of the training."""
    p_value: float
    """Larger p-value of two tests: that the late KL divergence exceeds the limit, and that the late reward lies below the first
    reward.
    """


def find_policy_departures(
    study: Study, divergences: Sequence[LoggedSignal], far: float, alpha: float
) -> list[PolicyDeparture]:
    """Return the trials whose policy departed from its reference by more than noise, in the order of `divergences`."""
    found = (_policy_departure(study, entry, far) for entry in divergences)
    return [d for d in found if d is not None and d.p_value <= alpha]


def _policy_departure(study: Study, entry: LoggedSignal, far: float) -> PolicyDeparture | None:
    reward = study.curve(entry.trial, "policy_reward").finite.values
    beyond = np.flatnonzero(entry.curve.values > far)
    if len(reward) < MIN_SIGNAL_POINTS or not len(beyond):
        return None
    kl, late = mean_level(entry.curve.values[entry.slice_of_points(0.5, 1.0)]), mean_level(reward[len(reward) // 2 :])
    first = MeanLevel(float(reward[0]), _reward_noise(reward), len(reward) - 3.0)
    step = int(entry.curve.steps[beyond[0]])
    return PolicyDeparture(
        entry.trial, step, kl.mean, first.mean, late.mean, max(kl.p_value_above(far), first.p_value_above_other(late))
    )


def _reward_noise(reward: FloatArray) -> float:
    """Return the standard deviation of the noise in a single reward value. Unlike a robust estimate, this standard deviation
    stays above 0 if the reward is constant at the end."""
    return math.sqrt(float(np.mean(np.diff(reward, 2) ** 2)) / 6)
