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
"""Minimum number of points of a curve; a fifth of them, at the start, must suffice to estimate the noise."""
KINDS_WITHOUT_POLICY: frozenset[WorkloadKind] = frozenset(
    {"supervised", "language-model", "gan", "diffusion", "self-supervised"}
)
"""Kinds of workload that train no policy."""
_SIGNAL_DESCRIPTIONS = {
    "groups_without_advantage": "the share of groups whose rewards are all equal, as TRL's frac_reward_zero_std",
    "policy_entropy": "the entropy of the policy, as TRL's entropy",
    "policy_kl": "the KL divergence from the reference, as TRL's kl (beta above 0)",
    "rollout_mismatch": "the difference between the sampler's and the trainer's log probabilities, as TRL's "
    "sampling/sampling_logp_difference/mean",
    "policy_reward": "the mean reward of the completions, as TRL's reward",
    "completions_truncated": "the share of completions that were cut off, as TRL's completions/clipped_ratio",
}


@dataclass(frozen=True, slots=True)
class LoggedSignal:
    """One kind of curve in one trial."""

    trial: Trial
    curve: Curve

    def slice_of_points(self, start: float, end: float) -> slice:
        """Return the slice of the points from the share `start` to the share `end` of the curve."""
        n = len(self.curve)
        return slice(round(start * n), max(round(end * n), round(start * n) + 2))


def logged_signals(study: Study, signal: Signal) -> list[LoggedSignal]:
    """Return the finite points of one kind of curve for each ended trial with at least `MIN_SIGNAL_POINTS`, best trial first.
    Raises MissingData if no trial has them."""
    trials = study.ranked()
    trials += [t for t in study.trials if study.ended[t.index] and t not in trials]
    curves = [LoggedSignal(t, study.curve(t, signal).finite) for t in trials]
    enough = [c for c in curves if len(c.curve) >= MIN_SIGNAL_POINTS]
    if not enough:
        needs: MissingDataKind = "other" if study.has("policy_reward") else "design"
        most = max((len(c.curve) for c in curves), default=0)
        advice = f"; the longest curve has {most}, so log it more often, in TRL by logging_steps=1" if most else ""
        raise MissingData(f"no trial logged {MIN_SIGNAL_POINTS} points of {_SIGNAL_DESCRIPTIONS[signal]}{advice}", needs=needs)
    return enough


def initial_and_late_reward(reward: FloatArray, changed: int | None = None) -> tuple[MeanLevel, MeanLevel]:
    """Return the level of the first rewards and that of the second half, (n,), n > 3. changed: index of the first reward of a
    clearly changed policy, if known; from there on, rewards are no first ones."""
    first = initial_rewards(reward)[: None if changed is None else max(changed, 1)]
    # Unlike a robust estimate, this estimate of the noise stays above 0 if the reward is constant at the end.
    noise = math.sqrt(float(np.mean(np.diff(reward, 2) ** 2)) / 6)
    initial = MeanLevel(float(first.mean()), noise / math.sqrt(len(first)), len(reward) - 3.0)
    return initial, mean_level(reward[len(reward) // 2 :])
