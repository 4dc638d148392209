from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import linregress

from advisor.computed.reinforcement import policy
from advisor.computed.reinforcement.policy import MIN_SIGNAL_POINTS, LoggedSignal
from advisor.engine.rule import Grounds, Rule, Share
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Name, Number, Percent, Probability, say
from advisor.model.space import FloatArray
from advisor.model.study import Curve, Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level

_KEEP_EXPLORING_ADVICE = (
    "Keep the policy exploring: lower the learning rate, raise the upper clipping bound (epsilon_high) or the entropy bonus, or "
    "add a KL penalty."
)
_ADVICE_WITHOUT_CLIPPING = (
    "Keep the policy exploring: lower the learning rate, raise the entropy bonus, or add a KL penalty. A higher clipping bound "
    "(epsilon_high) has no effect, because no importance ratio reaches it."
)


_INITIAL_POINTS = 3
"""Number of entropy values at the start of a trial whose median is the initial entropy."""
_MIN_ZERO_ADVANTAGE_SHARE = 0.75
"""Minimum share of groups without advantage late in training at which rewards count as different only between prompts."""
_MAX_COLLAPSED_ENTROPY_SHARE = 0.5
"""Maximum mean entropy after a collapse, as a share of the initial entropy, in the significance test of the collapse. After a
collapse, the entropy varies too much to test a lower limit."""
_MIN_REWARDS_FOR_TREND = 3
_LATE_START = 0.8


@dataclass(frozen=True, slots=True)
class TrialCollapse:
    trial: Trial
    step: int
    start: float
    share: float
    gain: float
    """Rise of a straight line through the rewards of the second half of the training, as a share of the reward's range."""
    late_reward: float
    ceiling: float
    """Expected reward at entropy 0, extrapolated from a linear fit of the reward to exp(entropy) up to the collapse."""
    p_value: float
    """p-value of the test that the mean entropy after the collapse is below half of the entropy at the start."""
    reason: str


class EntropyCollapse(Rule):
    """The policy stops exploring early: its entropy falls to near zero although more reward is possible.

    ## What it looks at
    The rule compares the policy's entropy with its values at the start of the same trial. The entropy has collapsed if it falls
    below a fifth of its initial value in the first half of the training and stays below on average. A fall by more than half
    must also be statistically significant. A fall of the entropy alone is normal for a task that is solved, so the rule also
    requires that the reward stands still and that more reward is possible. The reward stands still if a straight line through
    the second half of the rewards rises by at most a tenth of the reward's range, or by no more than noise. One of three
    observations must show that more reward is possible. The standard deviation of the rewards in a batch may be at least three
    quarters of its maximum although hardly any group has an advantage, so some prompts are solved and others are not. The
    reward may end below its initial value. Another trial of the study, whose entropy did not collapse early, may end at a
    higher reward. The rule fires if the best trial or at least half of the trials collapsed.

    ## Why it matters
    A policy of low entropy samples nearly the same answer again and again, so it finds no better answers, its groups lose their
    advantage, and the rest of the training changes nothing.

    ## What to do
    Lower the learning rate first. Then raise the upper clipping bound alone, so that the probability of rare tokens can grow;
    an entropy bonus or a KL penalty also helps. If the logged share of clipped tokens is always 0, the bound has no effect, and
    the rule does not recommend it. Stop trainings with collapsed entropy early.

    ## How sure
    Cui et al. 2025 (arXiv:2505.22617) report that entropy falls sharply in runs without intervention, and that the reward then
    stops near the ceiling of R = -a exp(H) + b at H = 0. The report shows this ceiling, fitted to the trial up to the collapse;
    the finding does not depend on it. DAPO (arXiv:2503.14476) raises the upper clipping bound against entropy collapse. We
    chose all limits of this rule. We measured the rule on tiny models trained with far too high learning rates, by hand-written
    GRPO and by TRL's trainer. In 120 studies whose learning rates are not far too high, the rule raised two false alarms (seeds
    20 to 29, on which we developed the test of the reward): the entropy collapsed, but the mean reward over many completions
    still rose, which the rewards of single batches were too noisy to show.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="test", advice="literature", source="arXiv 2505.22617, 2503.14476")
    goal = "stability"
    not_for = policy.KINDS_WITHOUT_POLICY

    collapsed: Share = 0.2
    """Maximum entropy that counts as collapsed, as a share of the entropy at the start. Our choice."""
    before: Share = 0.5
    """Share of the training before which a collapse counts as early. Our choice."""
    gain: Share = 0.1
    """Maximum rise of the reward in the second half of the training at which it counts as standing still, as a share of the
    reward's range."""
    spread: Share = 0.75
    """Minimum standard deviation of the rewards late in training, as a share of its maximum, at which some prompts count as
    unsolved. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding; significance level of the tests of late rewards and
    entropies."""

    def check(self, study: Study) -> Iterator[Finding]:
        entropies = policy.logged_signals(study, "policy_entropy")
        rewards = {entry.trial.index: entry for entry in policy.logged_signals(study, "policy_reward")}
        entropies = [entry for entry in entropies if entry.trial.index in rewards]
        if not entropies:
            raise MissingData("no trial logged both its reward and its entropy at enough steps")
        collapses = self.find_collapses(study, entropies, rewards)
        if collapses and (collapses[0].trial == entropies[0].trial or 2 * len(collapses) >= len(entropies)):
            yield self._build_finding(study, collapses, len(entropies))

    def _build_finding(self, study: Study, collapses: list[TrialCollapse], judged_count: int) -> Finding:
        first, trials, metric = collapses[0], [c.trial for c in collapses], study.signals["policy_entropy"]
        gain_label = "gain of the reward in the second half, as a share of its range"
        clip_ratios = np.concatenate([study.curve(t, "policy_clip_ratio").finite.values for t in trials])
        marks = [Mark(trial=c.trial.id, step=c.step, label="collapsed", lasting=True) for c in collapses[:5]]
        caption, lines = "The entropy falls to near zero early.", {"collapsed": self.collapsed * first.start}
        return self.finding(
            say(
                "The entropy of {trial} is on average {share} of its initial value from {step} on. Its reward does not rise in "
                "the second half, although {room}; the mean reward of the last fifth is {reward}. The entropy collapsed in {n} "
                "of {of}.",
                trial=Name(first.trial.name),
                share=Percent(first.share),
                step=study.at(first.step),
                reward=Number(first.late_reward),
                room=first.reason,
                n=len(collapses),
                of=Count(judged_count, "trial"),
            ),
            action=_KEEP_EXPLORING_ADVICE if clip_ratios.any() or not len(clip_ratios) else _ADVICE_WITHOUT_CLIPPING,
            severity="warning",
            # Below 1, because the best remedy depends on the task.
            confidence=0.85 * (1 - first.p_value),
            trials=trials,
            evidence=(
                curve_plot(metric, caption, trials[:5], marks=marks, lines=lines),
                table(
                    ("entropy after the collapse, as a share of the start", Percent(first.share), self.collapsed),
                    (gain_label, Percent(first.gain), self.gain),
                    ("p-value of an entropy below half of the start", Probability(first.p_value), self.false_alarms),
                    ("mean reward in the last fifth of the training", Number(first.late_reward)),
                    ("reward at entropy 0 by the formula of Cui et al.", Number(first.ceiling)),
                ),
            ),
        )

    def find_collapses(
        self, study: Study, entropies: list[LoggedSignal], rewards: Mapping[int, LoggedSignal]
    ) -> list[TrialCollapse]:
        starts = [(entry, _collapse_index(entry.curve.values, self.collapsed)) for entry in entropies]
        early_indices = [(entry, index) for entry, index in starts if index <= self.before * len(entry.curve)]
        late_levels = [_late_level(rewards[e.trial.index]) for e, index in starts if index > self.before * len(e.curve)]
        best_level = max(late_levels, key=lambda level: level.mean, default=None)
        # The best of several equal trials looks better by chance, so its test is corrected for their number (Bonferroni).
        alpha = self.false_alarms / max(len(late_levels), 1)
        collapses = []
        for entry, index in early_indices:
            reward_signal = rewards[entry.trial.index]
            reason = "a trial whose entropy stayed high reaches a higher reward"
            if best_level is None or best_level.p_value_above_other(_late_level(reward_signal)) > alpha:
                reason = self._reason_for_more_reward(study, reward_signal)
            collapse = self._collapse_of_trial(entry, index, reward_signal, reason) if reason else None
            collapses += [collapse] if collapse is not None else []
        return collapses

    def _collapse_of_trial(self, entry: LoggedSignal, index: int, rewards: LoggedSignal, reason: str) -> TrialCollapse | None:
        steps, entropy, reward = entry.curve.steps, entry.curve.values, rewards.curve.values
        reward_index = int(np.searchsorted(rewards.curve.steps, steps[index]))
        if len(entropy) - index < 2 or len(reward) - reward_index < _MIN_REWARDS_FOR_TREND or index < 1:
            return None
        start, late_entropy = float(np.median(entropy[:_INITIAL_POINTS])), mean_level(entropy[index:])
        p = late_entropy.p_value_below(_MAX_COLLAPSED_ENTROPY_SHARE * start)
        # Correlated noise makes the p-value of the rise too small; the reward then counts as rising, and the rule does not fire.
        second_half = reward[max(reward_index, len(reward) // 2) :]
        fit = linregress(np.arange(len(second_half)), second_half, alternative="greater")
        gain = float(fit.slope) * (len(second_half) - 1)
        reward_range = float(np.ptp([part.mean() for part in np.array_split(reward, 10)]))
        still_rises = gain > self.gain * reward_range and fit.pvalue <= self.false_alarms
        if start <= 0 or p > self.false_alarms or still_rises:
            return None
        return TrialCollapse(
            trial=entry.trial,
            step=int(steps[index]),
            start=start,
            share=late_entropy.mean / start,
            gain=gain / reward_range if reward_range > 0 else 0.0,
            late_reward=_late_level(rewards).mean,
            ceiling=_reward_ceiling(entry.curve, rewards.curve, int(steps[index])),
            p_value=p,
            reason=reason,
        )

    def _reason_for_more_reward(self, study: Study, reward_signal: LoggedSignal) -> str:
        """Return a clause that explains by the trial's own curves why more reward is possible; empty if they do not show it."""
        reward, trial = reward_signal.curve.values, reward_signal.trial
        first = mean_level(reward[: max(len(reward) // 20, _INITIAL_POINTS)])
        if first.p_value_above_other(_late_level(reward_signal)) <= self.false_alarms:
            return "the reward started at a higher value"
        reward_sds = study.curve(trial, "policy_reward_sd").finite.values
        zero_shares = study.curve(trial, "groups_without_advantage").finite.values
        if len(reward_sds) < MIN_SIGNAL_POINTS or len(zero_shares) < MIN_SIGNAL_POINTS:
            return ""
        late_sd, late_zeros = (float(values[round(_LATE_START * len(values)) :].mean()) for values in (reward_sds, zero_shares))
        max_sd = max(float(part.mean()) for part in np.array_split(reward_sds, 10))
        prompts_differ = late_sd >= self.spread * max_sd and late_zeros >= _MIN_ZERO_ADVANTAGE_SHARE
        return "some prompts are solved and others are not" if prompts_differ else ""


def _collapse_index(entropy: FloatArray, share: float) -> int:
    """Return the first index at which the smoothed entropy and the mean of all later entropies are both at most `share` times
    the initial entropy; the number of points if there is no such index."""
    limit, n = share * float(np.median(entropy[:_INITIAL_POINTS])), len(entropy)
    later_means = np.cumsum(entropy[::-1])[::-1] / np.arange(n, 0, -1)
    smooth = np.array([np.median(entropy[max(i - 2, 0) : i + 3]) for i in range(n)])
    indices = np.flatnonzero((smooth <= limit) & (later_means <= limit))
    return int(indices[0]) if len(indices) else n


def _late_level(entry: LoggedSignal) -> MeanLevel:
    return mean_level(entry.curve.values[entry.slice_of_points(_LATE_START, 1.0)])


def _reward_ceiling(entropy: Curve, reward: Curve, last_step: int) -> float:
    """Return the reward at entropy 0 by R = -a exp(H) + b, fitted to the common steps of both curves up to `until`; NaN for
    fewer than three common steps. With several optimizer steps on each batch, only the first one logs a reward."""
    steps, entropy_indices, reward_indices = np.intersect1d(entropy.steps, reward.steps, return_indices=True)
    n = int(np.searchsorted(steps, last_step, side="right"))
    x = np.exp(entropy.values[entropy_indices[:n]])
    if n < 3 or not np.ptp(x) > 0:
        return float("nan")
    slope, intercept = np.polyfit(x, reward.values[reward_indices[:n]], 1)
    return float(slope + intercept)
