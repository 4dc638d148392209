"""Reads the curves that trials log when they train a policy by rewards."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.model.finding import MissingData, MissingDataKind
from advisor.model.first_rewards import initial_rewards
from advisor.model.reading import WorkloadKind
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Signal, Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level

MIN_SIGNAL_POINTS = 20
"""Minimum number of points of a curve, so that its first fifth suffices to estimate the noise."""
KINDS_WITHOUT_POLICY: frozenset[WorkloadKind] = frozenset(
    ("supervised", "language-model", "gan", "diffusion", "self-supervised")
)
"""Kinds of workload that train no policy."""
_SIGNAL_DESCRIPTIONS = {
    "groups_without_advantage": "the share of groups whose rewards are all equal, as TRL's frac_reward_zero_std",
    "policy_entropy": "the entropy of the policy, as TRL's entropy",
    "policy_kl": "the KL divergence from the reference policy, as TRL's kl (with beta above 0)",
    "rollout_mismatch": "the difference between the sampler's and the trainer's log probabilities, as TRL's "
    "sampling/sampling_logp_difference/mean",
    "policy_reward": "the mean reward of the completions, as TRL's reward",
    "completions_truncated": "the share of completions that were cut off, as TRL's completions/clipped_ratio",
}


@dataclass(frozen=True, slots=True)
class LoggedSignal:
    """The finite points of one logged metric in one trial."""

    trial: Trial
    curve: Curve

    def slice_of_points(self, start: float, end: float) -> slice:
        """Return the slice of the points from the share `start` to the share `end` of the curve."""
        n = len(self.curve)
        return slice(round(start * n), max(round(end * n), round(start * n) + 2))


def logged_signals(study: Study, signal: Signal) -> list[LoggedSignal]:
    """Return the finite points of a signal for each ended trial that logged at least `MIN_SIGNAL_POINTS`, best trial first.
    Raises MissingData if no trial logged enough."""
    best_first = study.ranked()
    best_first += [t for t in study.trials if study.ended[t.index] and t not in best_first]
    signals = [LoggedSignal(t, study.curve(t, signal).finite) for t in best_first]
    sufficient_signals = [c for c in signals if len(c.curve) >= MIN_SIGNAL_POINTS]
    if not sufficient_signals:
        needs: MissingDataKind = "other" if study.has("policy_reward") else "design"
        points = max((len(c.curve) for c in signals), default=0)
        advice = f"; the longest curve has {points}, so log more often, in TRL by logging_steps=1" if points else ""
        raise MissingData(f"no trial logged {MIN_SIGNAL_POINTS} points of {_SIGNAL_DESCRIPTIONS[signal]}{advice}", needs=needs)
    return sufficient_signals


def initial_and_late_reward(reward: FloatArray, changed: int | None = None) -> tuple[MeanLevel, MeanLevel]:
    """Return (level of the first rewards, level of the second half) of `reward`, shape (n,), n > 3. changed: index of the first
    reward of a clearly changed policy, if known; rewards from this index on do not count as first rewards."""
    first_rewards = initial_rewards(reward)[: None if changed is None else max(changed, 1)]
    # Unlike a robust estimate, this estimate of the noise stays above 0 if the reward is constant at the end.
    noise_sd = math.sqrt(float(np.mean(np.diff(reward, 2) ** 2)) / 6)
    initial_level = MeanLevel(float(first_rewards.mean()), noise_sd / math.sqrt(len(first_rewards)), len(reward) - 3.0)
    return initial_level, mean_level(reward[len(reward) // 2 :])
