"""Determines when the entropy of a policy collapsed, and whether more reward was possible afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import linregress

from advisor.computed.reinforcement.policy import MIN_SIGNAL_POINTS, LoggedSignal
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level

_N_INITIAL_POINTS = 3
"""Number of entropy values at the start of a trial whose median is the initial entropy."""
_MIN_ZERO_ADVANTAGE_SHARE = 0.75
"""Minimum share of groups without advantage late in training at which rewards count as different only between prompts."""
_MAX_COLLAPSED_ENTROPY_SHARE = 0.5
"""Maximum mean entropy after a collapse, as a share of the initial entropy, in the significance test of the collapse. After a
collapse, the entropy varies too much to test a lower limit.
"""
_MIN_REWARDS_FOR_TREND = 3
"""Minimum number of rewards after a collapse to test whether they rise."""
_LATE_TRAINING_START = 0.8
"""Share of the training after which logged values count as late."""


class CollapseThresholds(NamedTuple):
    """Thresholds of the rule `entropy-collapse`."""

    collapsed: float
    before: float
    gain: float
    spread: float
    significance_level: float


@dataclass(frozen=True, slots=True)
class CollapsedEntropy:
    """An early collapse of the policy's entropy in one trial."""

    trial: Trial
    step: int
    start: float
    """Entropy of the policy at the start."""
    share: float
    """Mean entropy after the collapse, as a share of the entropy at the start."""
    gain: float
    """Rise of a straight line through the rewards of the second half of the training, as a share of the reward's range."""
    late_reward: float
    """Mean reward in the late part of the training."""
    reward_ceiling: float
    """Expected reward at entropy 0, extrapolated from a linear fit of the reward to exp(entropy) up to the collapse."""
    p_value: float
    """p-value of the test that the mean entropy after the collapse is below half of the entropy at the start."""
    more_reward_reason: str
    """Reason why more reward is possible, as a clause."""


def find_collapses(
    study: Study, judged: Sequence[LoggedSignal], rewards: Mapping[int, LoggedSignal], limits: CollapseThresholds
) -> list[CollapsedEntropy]:
    """Return the trials whose entropy collapsed early although more reward was possible, best first."""
    late = {index: _late_level(entry) for index, entry in rewards.items()}
    starts = {entry.trial.index: _collapse_index(entry.curve.values, limits.collapsed) for entry in judged}
    exploring = [entry.trial for entry in judged if starts[entry.trial.index] > limits.before * len(entry.curve)]
    better = max((late[t.index] for t in exploring), key=lambda one: one.mean, default=None)
    # The best of several equal trials looks better by chance, so its test is corrected for their number (Bonferroni).
    alpha = limits.significance_level / max(len(exploring), 1)
    found = []
    for entry in judged:
        index = starts[entry.trial.index]
        if index <= limits.before * len(entry.curve):
            collapse = _collapse_of_trial(study, entry, index, rewards[entry.trial.index], better, alpha, limits)
            found += [collapse] if collapse is not None else []
    return found


def _collapse_index(entropy: FloatArray, share: float) -> int:
    """Return the first index at which the smoothed entropy and the mean of all later entropies are both at most `share` times
    the initial entropy.

    If there is no such index, the result is the number of points.
    """
    limit, n = share * float(np.median(entropy[:_N_INITIAL_POINTS])), len(entropy)
    rest = np.cumsum(entropy[::-1])[::-1] / np.arange(n, 0, -1)
    smooth = np.array([np.median(entropy[max(i - 2, 0) : i + 3]) for i in range(n)])
    below = np.flatnonzero((smooth <= limit) & (rest <= limit))
    return int(below[0]) if len(below) else n


def _late_level(entry: LoggedSignal) -> MeanLevel:
    return mean_level(entry.curve.values[entry.slice_of_points(_LATE_TRAINING_START, 1.0)])


def _collapse_of_trial(
    study: Study,
    entry: LoggedSignal,
    index: int,
    rewarded: LoggedSignal,
    better: MeanLevel | None,
    alpha: float,
    limits: CollapseThresholds,
) -> CollapsedEntropy | None:
    """Return the collapse of a trial's entropy at `index`; None if the collapse is not significant, or if the reward still
    rises or could not be higher.

    better: late reward of the best trial that kept its entropy. alpha: significance level of the comparison with `better`.
    """
    steps, entropy = entry.curve.steps, entry.curve.values
    if len(entropy) - index < 2 or int((rewarded.curve.steps >= steps[index]).sum()) < _MIN_REWARDS_FOR_TREND:
        return None
    start, after = float(np.median(entropy[:_N_INITIAL_POINTS])), mean_level(entropy[index:])
    p = after.p_value_below(_MAX_COLLAPSED_ENTROPY_SHARE * start)
    reward, since = rewarded.curve.values, int(np.searchsorted(rewarded.curve.steps, steps[index]))
    late, middle = _late_level(rewarded), max(since, len(reward) // 2)
    gain, p_gain = _fit_reward_trend(reward[middle:])
    span = float(np.ptp([part.mean() for part in np.array_split(reward, 10)]))
    rises = gain > limits.gain * span and p_gain <= limits.significance_level
    if better is not None and better.p_value_above_other(late) <= alpha:
        room: str | None = "a trial that kept its entropy reaches more"
    else:
        room = _reason_for_more_reward(study, rewarded, late, limits)
    if start <= 0 or p > limits.significance_level or rises or room is None or index < 1:
        return None
    return CollapsedEntropy(
        trial=entry.trial,
        step=int(steps[index]),
        start=start,
        share=after.mean / start,
        gain=gain / span if span > 0 else 0.0,
        late_reward=late.mean,
        reward_ceiling=_reward_ceiling(entry.curve, rewarded.curve, int(steps[index])),
        p_value=p,
        more_reward_reason=room,
    )


def _fit_reward_trend(reward: FloatArray) -> tuple[float, float]:
    """Fit a straight line to the rewards, shape (n,) with n >= 3, and return the rise of the line and the one-sided p-value of
    the rise.

    Correlated noise makes the p-value too small. With too small a p-value, the reward counts as rising, and the rule does not
    fire.
    """
    fit = linregress(np.arange(len(reward)), reward, alternative="greater")
    return float(fit.slope) * (len(reward) - 1), float(fit.pvalue)


def _reason_for_more_reward(study: Study, rewarded: LoggedSignal, late: MeanLevel, limits: CollapseThresholds) -> str | None:
    """Return a clause that explains by the trial's own curves why more reward is possible; None if the curves do not show it."""
    reward, trial = rewarded.curve.values, rewarded.trial
    first = mean_level(reward[: max(len(reward) // 20, _N_INITIAL_POINTS)])
    if first.p_value_above_other(late) <= limits.significance_level:
        return "the reward started at a higher value"
    spread = study.curve(trial, "policy_reward_sd").finite.values
    idle = study.curve(trial, "groups_without_advantage").finite.values
    if len(spread) < MIN_SIGNAL_POINTS or len(idle) < MIN_SIGNAL_POINTS:
        return None
    tail = slice(round(_LATE_TRAINING_START * len(spread)), None)
    largest = max(float(part.mean()) for part in np.array_split(spread, 10))
    differs = float(spread[tail].mean()) >= limits.spread * largest
    alike = float(idle[round(_LATE_TRAINING_START * len(idle)) :].mean()) >= _MIN_ZERO_ADVANTAGE_SHARE
    return "some prompts are solved and others are not" if differs and alike else None


def _reward_ceiling(entropy: Curve, reward: Curve, until: int) -> float:
    """Return the reward at entropy 0 by R = -a exp(H) + b, fitted to the common steps of both curves up to `until`; NaN for
    fewer than three such steps.

    A trainer that makes several optimizer steps on each batch logs a reward only with the first step on the batch.
    """
    steps, here, there = np.intersect1d(entropy.steps, reward.steps, return_indices=True)
    n = int(np.searchsorted(steps, until, side="right"))
    x = np.exp(entropy.values[here[:n]])
    if n < 3 or not np.ptp(x) > 0:
        return float("nan")
    slope, intercept = np.polyfit(x, reward.values[there[:n]], 1)
    return float(slope + intercept)
