from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.reinforcement import policy
from advisor.engine.rule import Grounds, Relation, Rule, Share
from advisor.model.change import Advise, Change, FixParameter
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding
from advisor.model.message import Count, Name, Percent, Probability, say
from advisor.model.parameter_kinds import batch_size
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level

_GROUP_SIZE_PARAMETERS = ("num_generations", "group_size")
_MIXED_REWARDS = "Choose prompts that the model answers rightly sometimes but not always, or grade the reward more finely."


@dataclass(frozen=True, slots=True)
class _SharesWithoutAdvantage:
    trial: Trial
    start: MeanLevel
    whole: MeanLevel

    def p_value(self, limit: float) -> float:
        return max(self.start.p_value_above(limit), self.whole.p_value_above(limit))


class GroupsWithoutAdvantage(Rule):
    """In most groups of completions, all rewards are equal, so most of the work teaches the policy nothing.

    ## What it looks at
    The rule reads the logged share of groups in which all completions of one prompt earn the same reward (TRL's
    `frac_reward_zero_std`). The share of groups with equal rewards must exceed one half by more than noise, both in the first
    fifth of the training and over the whole training, in the best trial and in most trials. A share of groups without advantage
    that is small at first and grows is normal, because prompts that the policy has learned no longer have an advantage.

    ## Why it matters
    Algorithms such as GRPO compare the completions of one prompt with each other. If all completions of a prompt earn the same
    reward, their advantage is zero, and the group adds nothing to the gradient. The effective batch is then smaller than the
    batch that you pay for, and the gradient is noisier.

    ## What to do
    Leave out prompts that the model always or never answers rightly, or sample prompts until the rewards differ within enough
    groups (dynamic sampling). A reward with more than two values makes equal rewards rarer, too. More completions for each
    prompt help if right answers are rare. The advice doubles the number of completions per prompt if the mean reward lies in
    the lower half of the study's range of rewards, beyond noise, and the batch is known and divisible by the new number.

    ## How sure
    By the algorithm, groups with equal rewards have no gradient; DAPO (Yu et al. 2025, arXiv:2503.14476) describes this problem
    and trains better by sampling such groups again. The p-value comes from a t-test over the means of five blocks of steps, so
    values at neighbouring steps may be correlated. We measured the rule on tiny models, trained by hand-written GRPO and by
    TRL's trainer on too hard or too easy prompts.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="count", advice="mechanism", source="arXiv 2503.14476")
    goal = "efficiency"
    not_for = policy.KINDS_WITHOUT_POLICY
    explains = Relation(
        rules=("entropy-collapse",),
        shares="trials",
        because="Few groups have an advantage, so the policy learns from few prompts.",
        waits=False,
    )

    most: Share = 0.5
    """Maximum acceptable share of groups without advantage. We chose one half, because with a larger share more than half of
    the work is lost."""
    start: Share = 0.2
    """Share of the training that counts as its start. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies with a finding if the true share of groups without advantage is exactly the maximum."""

    def check(self, study: Study) -> Iterator[Finding]:
        measured = [self._measure_shares(entry) for entry in policy.logged_signals(study, "groups_without_advantage")]
        reported = [s for s in measured if s.p_value(self.most) <= self.false_alarms]
        if measured[0] in reported and 2 * len(reported) > len(measured):
            yield self._build_finding(study, reported, len(measured))

    def _measure_shares(self, entry: policy.LoggedSignal) -> _SharesWithoutAdvantage:
        values = entry.curve.values
        start = mean_level(values[entry.slice_of_points(0.0, self.start)])
        return _SharesWithoutAdvantage(entry.trial, start, mean_level(values))

    def _has_low_rewards(self, study: Study, trial: Trial) -> bool:
        rewards = study.curve(trial, "policy_reward").finite.values
        if len(rewards) < policy.MIN_SIGNAL_POINTS:
            return False
        all_rewards = np.concatenate([study.curve(t, "policy_reward").finite.values for t in study.trials])
        midpoint = (min(0.0, float(all_rewards.min())) + float(all_rewards.max())) / 2
        return mean_level(rewards).p_value_below(midpoint) <= self.false_alarms

    def _build_finding(self, study: Study, reported: Sequence[_SharesWithoutAdvantage], judged_count: int) -> Finding:
        first, trials, metric = reported[0], [s.trial for s in reported], study.signals["groups_without_advantage"]
        group_size, change = _double_group_size(study) if self._has_low_rewards(study, first.trial) else (0, ())
        p, start_share, mean_share = first.p_value(self.most), Percent(first.start.mean), Percent(first.whole.mean)
        caption, lines = "Most groups have no advantage from the start.", {"half of the groups": self.most}
        size_advice = " Rewards are low, so sample {more} completions for each prompt instead of {size}."
        text = (
            "All rewards are equal in {share} of the groups of {trial}, and in {start} of the groups at the start. Such groups "
            "dominate in {n} of {of}."
        )
        trial = Name(first.trial.name)
        return self.finding(
            say(text, share=mean_share, trial=trial, start=start_share, n=len(reported), of=Count(judged_count, "trial")),
            action=say(_MIXED_REWARDS + size_advice, more=2 * group_size, size=group_size) if group_size else _MIXED_REWARDS,
            severity="warning",
            # The logged share is an exact count, and more groups with an advantage give more signal per step.
            confidence=0.9 * (1 - p),
            trials=trials,
            evidence=(
                curve_plot(metric, caption, trials[:5], lines=lines, shares=True),
                table(
                    ("share of groups without advantage at the start", start_share, self.most),
                    ("share of groups without advantage over the training", mean_share, self.most),
                    ("p-value of the larger share", Probability(p), self.false_alarms),
                    ("trials", say("{n} of {of}", n=len(reported), of=judged_count)),
                ),
            ),
            changes=(Advise(text=_MIXED_REWARDS), *change),
        )


def _double_group_size(study: Study) -> tuple[int, tuple[Change, ...]]:
    """Return (size of the groups, change to twice that size). The size is 0 if it is unknown or varies, or if a batch does not
    consist of whole groups of the doubled size."""
    batches = [batch_size(trial) for trial in study.trials]
    for name in _GROUP_SIZE_PARAMETERS:
        sizes = {trial.params[name] for trial in study.trials if name in trial.params}
        if len(sizes) == 1 and isinstance(size := sizes.pop(), int) and size > 1:
            if not all(batch % (2 * size) == 0 for batch in batches):
                break
            why = "Larger groups contain different rewards more often."
            return size, (FixParameter(parameter=name, value=2 * size, why=why),)
    return 0, ()
