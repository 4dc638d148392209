"""The rule `completions-truncated`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from advisor.computed.reinforcement import policy
from advisor.engine.rule import Grounds, Rule, Share
from advisor.model.change import Advise, Change, FixParameter
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal
from advisor.model.message import Count, Message, Name, Percent, Probability, limited, say
from advisor.model.reading import Kind
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level

_LIMIT = "max_completion_length"
_GROWS = (
    "Read some of these completions. If they ramble, make the reward independent of length, or penalise length near the limit. "
    "If they reason, raise the maximum length of completions."
)
_SHORT = "Raise the maximum length of completions, or leave truncated completions out of the loss."
_CONFIDENCE = 0.9
"""Confidence before noise is considered: the share is a count, but a task can work although some of its completions are cut off."""


@dataclass(frozen=True, slots=True)
class _Truncation:
    trial: Trial
    start: MeanLevel
    late: MeanLevel
    grew: bool
    """Whether the share rose from the start beyond noise."""


class CompletionsTruncated(Rule):
    """Many completions are cut off at the maximum length late in the training.

    ## What it looks at
    The logged share of completions that reached the maximum length without an end (TRL's `completions/clipped_ratio`), in the
    second half of the training. It must exceed one fifth beyond noise in most trials, and the best trial must not lie below
    that beyond noise: if the limit is too short, the best trial is often the one that gave up long answers first. A share
    that is large at first and falls below one fifth is normal, because the policy learns to stop. The start of the same trial
    tells whether completions grew into the limit or never fitted.

    ## Why it matters
    A truncated completion has no final answer, so its reward says little about what it contains. If completions grow into the
    limit, the reward often pays for length and not for quality. If completions never fitted, the policy learns to answer without
    the part that it cannot finish.

    ## What to do
    Read truncated completions. If the text repeats itself, change the reward: no term that grows with length, or a penalty near the
    limit. If the text is sound, raise the limit. Leaving truncated completions out of the loss (`mask_truncated_completions`)
    removes the noise, not its cause.

    ## How sure
    DAPO (Yu et al. 2025, arXiv:2503.14476) reports that rewards of truncated samples are noise, and that masking them or a soft
    penalty stabilises training. The limit of one fifth is our choice. The p-values come from t-tests over means of five blocks.
    The rule was measured on trainings of tiny models whose reward pays for length or whose limit is too short, by hand-written
    GRPO and by TRL's trainer. TRL's case that it missed, of 20, grew into the limit only at the end: 44 % of the late
    completions were cut off, but the blocks differed too much for the test.
    """

    playbook: ClassVar[str] = "Examining the training curves"
    grounds: ClassVar[Grounds] = Grounds(finding="count", advice="literature", source="arXiv 2503.14476")
    goal: ClassVar[Goal] = "pipeline"
    not_for: ClassVar[frozenset[Kind]] = policy.NOT_FOR

    most: Share = 0.2
    """Maximum acceptable share of truncated completions in the second half of the training. Our choice."""
    start: Share = 0.1
    """Share of the training that counts as its start. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies with a finding if the share is exactly the maximum."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding."""
        judged = [self._truncation(entry) for entry in policy.logged_signals(study, "completions_truncated")]
        cut = [t for t in judged if t.late.p_above(self.most) <= self.false_alarms]
        best_is_below = judged[0].late.p_below(self.most) <= self.false_alarms
        if 2 * len(cut) > len(judged) and not best_is_below:
            yield self._finding(study, cut, len(judged))

    def _truncation(self, entry: policy.LoggedSignal) -> _Truncation:
        values = entry.curve.values
        start, late = (mean_level(values[entry.part_of_points(*ends)]) for ends in ((0.0, self.start), (0.5, 1.0)))
        return _Truncation(entry.trial, start, late, late.p_above_other(start) <= self.false_alarms)

    def _finding(self, study: Study, cut: Sequence[_Truncation], judged: int) -> Finding:
        first = cut[0]
        p = first.late.p_above(self.most)
        return self.finding(
            say(
                "Late in its training, {share} of the completions of {trial} are cut off at the maximum length{start}. "
                "The same holds for {n} of {of}.",
                share=Percent(first.late.mean),
                trial=Name(first.trial.name),
                start=say(", after {start} at its start", start=Percent(first.start.mean)),
                n=len(cut),
                of=Count(judged, "trial"),
            ),
            action=_action(study, first),
            severity="warning",
            confidence=_CONFIDENCE * (1 - p),
            trials=[t.trial for t in cut],
            evidence=(
                CurveEvidence(
                    metrics=(study.signals["completions_truncated"],),
                    caption=say("{share} of the late completions are cut off.", share=Percent(first.late.mean)),
                    trials=tuple(t.trial.id for t in cut[:5]),
                    lines=(Line(value=self.most, label="limit"),),
                ),
                FigureEvidence(
                    rows=(
                        ("truncated in the first tenth", say("{share}", share=Percent(first.start.mean))),
                        ("truncated in the second half", limited(Percent(first.late.mean), Percent(self.most))),
                        ("p-value of the excess", limited(Probability(p), self.false_alarms)),
                        (
                            "p-value of the rise",
                            limited(Probability(first.late.p_above_other(first.start)), self.false_alarms),
                        ),
                    )
                ),
            ),
            changes=_changes(study, first),
        )


def _limit(study: Study) -> int:
    """Return the maximum length of completions; 0 if it is unknown or varies."""
    limits = {trial.params[_LIMIT] for trial in study.trials if _LIMIT in trial.params}
    limit = limits.pop() if len(limits) == 1 else 0
    return limit if isinstance(limit, int) else 0


def _action(study: Study, first: _Truncation) -> Message:
    if first.grew:
        return say(_GROWS)
    limit = _limit(study)
    twice = say("Raise {name} from {limit} to {twice}.", name=Name(_LIMIT), limit=limit, twice=2 * limit)
    return twice if limit else say(_SHORT)


def _changes(study: Study, first: _Truncation) -> tuple[Change, ...]:
    limit = _limit(study)
    if first.grew or not limit:
        return (Advise(text=_GROWS if first.grew else _SHORT),)
    why = f"{first.late.mean:.0%} of the completions are cut off at {limit} tokens.".replace("%", " %")
    return (FixParameter(parameter=_LIMIT, value=2 * limit, why=why),)
