from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.computed.reinforcement import policy
from advisor.engine.rule import Grounds, Rule, Share
from advisor.model.change import Advise, Change, FixParameter
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding
from advisor.model.message import Count, Message, Name, Number, Percent, Probability, say
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level, mean_level_with_trend

_MAX_LENGTH_PARAMETER = "max_completion_length"
_NEARLY_ALL_SHARE = 0.95
_GROWING_LENGTH_ADVICE = (
    "Read some of these completions. If they ramble, make the reward independent of length, or penalise length near the limit. "
    "If they reason, raise the maximum length of completions."
)
_RAISE_LENGTH_LIMIT_ADVICE = "Raise the maximum length of completions, or leave truncated completions out of the loss."
_LOWER_REWARDS_NOTE = "Rewards may be lower at first, until the policy has learned to end its answers."
_FINDING_CONFIDENCE = 0.9
"""Confidence of a finding whose p-value is 0; it is below 1, because training can work although some completions are
truncated."""
_RISING_REWARD_CONFIDENCE = 0.75
"""Confidence of a finding whose p-value is 0, if the reward rises although completions never fitted into the length limit. The
answers may fit into the limit, so that only the text after the answers is truncated. Our choice."""


@dataclass(frozen=True, slots=True)
class _TruncationLevels:
    trial: Trial
    start: MeanLevel
    late: MeanLevel
    final_share: float
    """Mean share of truncated completions over the last tenth of the training."""
    share_grew: bool
    rising_rewards: tuple[MeanLevel, MeanLevel] | None
    """Rewards at the start and in the second half of the training, if the reward rose by more than noise; else None."""


class CompletionsTruncated(Rule):
    """Many completions are cut off at the maximum length late in the training.

    ## What it looks at
    The rule reads the logged share of completions in the second half of the training that reached the maximum length without an
    end (TRL's `completions/clipped_ratio`). The share of truncated completions must exceed one fifth by more than noise in most
    trials, and must not be significantly below one fifth in the best trial. If the length limit is too short, the best trial is
    often the one that gave up long answers first. A steady rise or fall of the share does not count as noise. A share of
    truncated completions that is large at first and ends below one fifth is normal, because the policy learns to end its
    answers. The start of the same trial shows whether completions grew up to the length limit or never fitted into it.

    ## Why it matters
    A completion that is cut off before its final answer earns a reward that says little about its quality. If completions grow
    up to the length limit, the reward often pays for length instead of quality. If completions never fitted into the length
    limit, the policy learns to answer without the text that does not fit. If the reward rises although completions never
    fitted, the answers probably fit and only their end is cut off; the policy then never learns to stop.

    ## What to do
    Read truncated completions. If the text repeats itself, remove reward terms that grow with length, or penalise lengths near
    the limit. If the text is sound, double the length limit, and double it again if more than a fifth of the completions is
    still cut off. Rewards before and after the change of the limit are not comparable, and the policy must first learn to stop.
    The next study therefore trains the best settings again with the new limit. Leaving truncated completions out of the loss
    (`mask_truncated_completions`) removes the noise, not its cause.

    ## How sure
    DAPO (Yu et al. 2025, arXiv:2503.14476) reports that rewards of truncated samples are noise, and that masking them or a soft
    penalty stabilises training. The p-values come from t-tests over the means of five blocks of values. In the second half of
    the training, only deviations from a straight line count as noise. We measured the rule on tiny models, trained by
    hand-written GRPO and by TRL's trainer, whose reward pays for length or whose length limit is too short.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="count", advice="literature", source="arXiv 2503.14476")
    goal = "pipeline"
    not_for = policy.KINDS_WITHOUT_POLICY

    most: Share = 0.2
    """Maximum acceptable share of truncated completions in the second half of the training. Our choice."""
    start: Share = 0.1
    """Share of the training that counts as its start. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies with a finding if the true share of truncated completions is exactly the maximum acceptable
    share."""

    def check(self, study: Study) -> Iterator[Finding]:
        measured = [self._measure_truncation(study, entry) for entry in policy.logged_signals(study, "completions_truncated")]
        truncated = [t for t in measured if t.final_share > self.most and t.late.p_value_above(self.most) <= self.false_alarms]
        best_is_below = measured[0].late.p_value_below(self.most) <= self.false_alarms
        if 2 * len(truncated) > len(measured) and not best_is_below:
            yield self._build_finding(study, truncated, len(measured))

    def _measure_truncation(self, study: Study, entry: policy.LoggedSignal) -> _TruncationLevels:
        start, late = self._start_and_late_levels(entry)
        rewards = policy.LoggedSignal(entry.trial, study.curve(entry.trial, "policy_reward").finite)
        rising_rewards = None
        if len(rewards.curve) >= policy.MIN_SIGNAL_POINTS:
            before, after = self._start_and_late_levels(rewards)
            rising_rewards = (before, after) if after.p_value_above_other(before) <= self.false_alarms else None
        share_grew = late.p_value_above_other(start) <= self.false_alarms
        final_share = float(entry.curve.values[entry.slice_of_points(0.9, 1.0)].mean())
        return _TruncationLevels(entry.trial, start, late, final_share, share_grew, rising_rewards)

    def _start_and_late_levels(self, entry: policy.LoggedSignal) -> tuple[MeanLevel, MeanLevel]:
        values = entry.curve.values
        start, late = (values[entry.slice_of_points(*ends)] for ends in ((0.0, self.start), (0.5, 1.0)))
        return mean_level(start), mean_level_with_trend(late)

    def _build_finding(self, study: Study, truncated: Sequence[_TruncationLevels], judged_count: int) -> Finding:
        first, limit = truncated[0], _completion_length_limit(study)
        p, p_rise = first.late.p_value_above(self.most), first.late.p_value_above_other(first.start)
        caption = say("{share} of the late completions are cut off.", share=Percent(first.late.mean))
        lines, confidence = {"limit": self.most}, _FINDING_CONFIDENCE
        action, changes = say(_RAISE_LENGTH_LIMIT_ADVICE), list[Change]()
        if first.share_grew:
            action = say(_GROWING_LENGTH_ADVICE)
        elif limit:
            text = (
                "Raise {name} from {limit} to {twice}, and raise it again if more than {most} are still cut off. Read some "
                "completions first."
            )
            name = Name(_MAX_LENGTH_PARAMETER)
            action = say(text, name=name, limit=limit, twice=2 * limit, most=Percent(self.most))
            why = f"{first.late.mean:.0%} of the completions are cut off at {limit} tokens.".replace("%", " %")
            changes = [
                FixParameter(parameter=_MAX_LENGTH_PARAMETER, value=2 * limit, why=why, new_scores=True),
                Advise(text=_LOWER_REWARDS_NOTE),
            ]
        if first.rising_rewards is not None and not first.share_grew:
            confidence = _RISING_REWARD_CONFIDENCE
        trials, metric = [t.trial for t in truncated], study.signals["completions_truncated"]
        return self.finding(
            _message(truncated, judged_count, limit),
            action=action,
            severity="warning",
            confidence=confidence * (1 - p),
            trials=trials,
            evidence=(
                curve_plot(metric, caption, trials[:5], lines=lines, shares=True),
                table(
                    ("share of truncated completions in the first tenth", Percent(first.start.mean)),
                    ("share of truncated completions in the second half", Percent(first.late.mean), self.most),
                    ("p-value that the share exceeds the limit", Probability(p), self.false_alarms),
                    ("p-value of the rise of the share", Probability(p_rise), self.false_alarms),
                ),
            ),
            changes=changes or None,
        )


def _completion_length_limit(study: Study) -> int:
    limits = {trial.params[_MAX_LENGTH_PARAMETER] for trial in study.trials if _MAX_LENGTH_PARAMETER in trial.params}
    limit = limits.pop() if len(limits) == 1 else 0
    return limit if isinstance(limit, int) else 0


def _message(truncated: Sequence[_TruncationLevels], judged_count: int, limit: int) -> Message:
    first, n, trials_text, reward = truncated[0], len(truncated), Count(judged_count, "trial"), say("")
    if not first.share_grew:
        reward = say(" A truncated completion can lack its final answer.")
        if first.rising_rewards is not None:
            before, after = (Number(level.mean, 2) for level in first.rising_rewards)
            text = (
                " The mean reward of {trial} still rises from {before} to {after}, so the answers may fit and only their end is "
                "cut off."
            )
            reward = say(text, trial=Name(first.trial.name), before=before, after=after)
        if min(first.start.mean, first.late.mean) >= _NEARLY_ALL_SHARE:
            text = "In {n} of {of}, nearly all completions are cut off at {at}, from the start of the training to its end."
            length_text = Count(limit, "token") if limit else "the maximum length"
            return say(text + "{reward}", n=n, of=trials_text, at=length_text, reward=reward)
    text = (
        "Late in its training, {share} of the completions of {trial} are cut off at the maximum length, after {start} at its "
        "start. Completions are cut off in {n} of {of}.{reward}"
    )
    share, start = Percent(first.late.mean), Percent(first.start.mean)
    return say(text, share=share, trial=Name(first.trial.name), start=start, n=n, of=trials_text, reward=reward)
