"""The rule `rollout-mismatch`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from advisor.computed.reinforcement import policy
from advisor.engine.rule import Factor, Grounds, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import CurveEvidence, FigureEvidence, Line
from advisor.model.finding import Finding, Goal
from advisor.model.message import Count, Name, Number, Probability, limited, say
from advisor.model.reading import Kind
from advisor.model.study import Study, Trial
from advisor.stats.blocks import Level, level

_SYNC = "Check that the engine that samples gets the trainer's weights after each update: the difference grows."
_SAME = "Sample with the temperature and precision of the trainer, without limits such as top-p, and copy the weights more often."
_CONFIDENCE = 0.75
"""Confidence apart from noise: the share of trainings with such a mismatch and importance ratios whose reward is higher without it,
on seeds on which the limit was chosen."""


@dataclass(frozen=True, slots=True)
class _Mismatch:
    trial: Trial
    start: Level
    late: Level
    grew: bool
    """Whether the mismatch rose from the start beyond noise."""


class RolloutMismatch(Rule):
    """The engine that samples completions and the trainer give the same words different probabilities.

    ## What it looks at
    The logged mean absolute difference between the log probabilities of the sampled words in the engine and in the trainer (TRL's
    `sampling/sampling_logp_difference/mean`), in nats, in the second half of the training. It must exceed 0.2 nats beyond noise,
    in the best trial and in most trials. The start of the same trial tells whether the difference grows.

    ## Why it matters
    The trainer learns from the completions as if it had sampled them. If another policy sampled the completions, the gradient
    belongs to another objective. Importance ratios correct this in part: they leave out or cut the completions that differ most.

    ## What to do
    If the difference grows, the engine probably samples with old weights: check that each update reaches it, also the weights of an
    adapter. If not, compare precision, quantisation, temperature and sampling limits of engine and trainer, and copy the weights
    more often. Turn on the correction by importance ratios if the trainer has one.

    ## How sure
    TRL and ms-swift document that such a mismatch can harm the training, and correct it by importance ratios. The limit of 0.2
    nats is our choice, on trainings of tiny models from four seeds. On three other seeds, with weights rounded to 3 to 16 bits, old
    weights, and other temperatures, the reward of trainings beyond the limit was lower than with a matching engine in 15 of 15
    without importance ratios (by 0.03 to 0.48) and in 12 of 16 with them. The other four sampled at a higher temperature, which
    explores more. Below 0.05 nats, 1 of 51 lost more than 0.03. On ten seeds that the limit was not chosen on
    (`benchmarks/quality/finetuning.py`), the rule fired in 42 of 50 studies with a mismatch, and in none of 30 whose engine rounds
    to 16 or 6 bits or gets new weights every 4 batches. It missed 7 of 10 studies with weights of 3 bits and no importance ratios,
    whose difference falls to the limit. The p-values come from t-tests over means of five blocks.
    """

    playbook: ClassVar[str] = "Examining the training curves"
    grounds: ClassVar[Grounds] = Grounds(
        finding="count", advice="literature", source="documentation of TRL and ms-swift"
    )
    goal: ClassVar[Goal] = "pipeline"
    not_for: ClassVar[frozenset[Kind]] = policy.NOT_FOR
    explains: ClassVar[tuple[Relation, ...]] = (
        Relation(
            rules=("entropy-collapse", "policy-jumps"),
            shares="trials",
            because="The trainer learns from completions of another policy.",
        ),
    )

    most: Factor = 0.2
    """Maximum acceptable mean difference, nats per word."""
    start: Share = 0.1
    """Share of the training that counts as its start. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies with a finding if the difference is exactly the maximum."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding."""
        judged = [self._mismatch(entry) for entry in policy.logged(study, "rollout_mismatch")]
        apart = [m for m in judged if m.late.p_above(self.most) <= self.false_alarms]
        if judged[0] in apart and 2 * len(apart) > len(judged):
            yield self._finding(study, apart, len(judged))

    def _mismatch(self, entry: policy.Logged) -> _Mismatch:
        values = entry.curve.values
        start, late = (level(values[entry.part(*ends)]) for ends in ((0.0, self.start), (0.5, 1.0)))
        return _Mismatch(entry.trial, start, late, late.p_above_level(start) <= self.false_alarms)

    def _finding(self, study: Study, apart: Sequence[_Mismatch], judged: int) -> Finding:
        first = apart[0]
        p = first.late.p_above(self.most)
        action = _SYNC if first.grew else _SAME
        return self.finding(
            say(
                "Late in the training of {trial}, the probability of a sampled word differs by a factor of {factor} between the "
                "engine that samples and the trainer ({late} nats, after {start} at the start). The same holds for {n} of {of}.",
                trial=Name(first.trial.name),
                late=Number(first.late.mean),
                factor=Number(math.exp(min(first.late.mean, 100.0))),
                start=Number(first.start.mean),
                n=len(apart),
                of=Count(judged, "trial"),
            ),
            action=say(action),
            severity="warning",
            confidence=_CONFIDENCE * (1 - p),
            trials=[m.trial for m in apart],
            evidence=self._evidence(study, apart),
            changes=(Advise(text=action),),
        )

    def _evidence(self, study: Study, apart: Sequence[_Mismatch]) -> tuple[CurveEvidence, FigureEvidence]:
        start, late = apart[0].start, apart[0].late
        return (
            CurveEvidence(
                metrics=(study.signals["rollout_mismatch"],),
                caption="The engine and the trainer disagree about the sampled words.",
                trials=tuple(m.trial.id for m in apart[:5]),
                lines=(Line(value=self.most, label="limit"),),
            ),
            FigureEvidence(
                rows=(
                    ("difference in the first tenth, nats", Number(start.mean)),
                    ("difference in the second half, nats", limited(Number(late.mean), Number(self.most))),
                    ("p-value of the excess", limited(Probability(late.p_above(self.most)), self.false_alarms)),
                    ("p-value of the rise", limited(Probability(late.p_above_level(start)), self.false_alarms)),
                )
            ),
        )
