"""Finds policies that are far from their reference and earn a lower reward than at their start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.reinforcement.policy import MIN_SIGNAL_POINTS, LoggedSignal, initial_and_late_reward
from advisor.model.study import Study, Trial
from advisor.stats.blocks import mean_level


@dataclass(frozen=True, slots=True)
class PolicyDeparture:
    """A trial whose policy moved far from its reference and earns a lower reward than at its start."""

    trial: Trial
    step: int
    """First step at which the KL divergence exceeds the limit."""
    late_kl: float
    """Mean KL divergence over the second half of the training."""
    first_reward: float
    """Mean of the first rewards."""
    late_reward: float
    """Mean reward over the second half of the training."""
    p_value: float
    """Larger p-value of two tests: that the late KL divergence exceeds the limit, and that the late reward lies below the first
    rewards.
    """


def find_policy_departures(
    study: Study, divergences: Sequence[LoggedSignal], far: float, alpha: float
) -> list[PolicyDeparture]:
    """Return the trials whose policy departed from its reference by more than noise, in the order of `divergences`."""
    found = (_policy_departure(study, entry, far) for entry in divergences)
    return [d for d in found if d is not None and d.p_value <= alpha]


def _policy_departure(study: Study, entry: LoggedSignal, far: float) -> PolicyDeparture | None:
    reward = study.curve(entry.trial, "policy_reward").finite
    beyond = np.flatnonzero(entry.curve.values > far)
    if len(reward) < MIN_SIGNAL_POINTS or not len(beyond):
        return None
    kl = mean_level(entry.curve.values[entry.slice_of_points(0.5, 1.0)])
    step = int(entry.curve.steps[beyond[0]])
    first, late = initial_and_late_reward(reward.values, int(np.searchsorted(reward.steps, step)))
    return PolicyDeparture(
        entry.trial, step, kl.mean, first.mean, late.mean, max(kl.p_value_above(far), first.p_value_above_other(late))
    )
