from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from advisor.computed.reinforcement import policy
from advisor.engine.rule import Factor, Grounds, Relation, Rule, Share
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding
from advisor.model.message import Count, Name, Number, Probability, say
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level, mean_level_with_trend

_SYNC_WEIGHTS = "Check that the sampling engine gets the trainer's weights after each update, because the difference grows."
_MATCH_SAMPLING_ADVICE = (
    "Sample with the temperature and precision of the trainer, without limits such as top-p, and copy the weights more often."
)


@dataclass(frozen=True, slots=True)
class _EngineDifference:
    """Levels of the log-probability difference at the start, and in the first and the second half of the training."""

    trial: Trial
    start: MeanLevel
    early: MeanLevel
    late: MeanLevel

    @property
    def larger(self) -> MeanLevel:
        return max(self.early, self.late, key=lambda level: level.mean)

    def p_above(self, limit: float) -> float:
        """Return the p-value of a mean above `limit` in the half with the larger mean, corrected for the choice of the half."""
        return min(2 * self.larger.p_value_above(limit), 1.0)


class RolloutMismatch(Rule):
    """The engine that samples completions and the trainer give the same tokens different probabilities.

    ## What it looks at
    The rule reads the logged mean absolute difference between the log probabilities of the sampled tokens in the engine and in
    the trainer (TRL's `sampling/sampling_logp_difference/mean`), in nats. The mean difference over the first or the second half
    of the training must exceed 0.2 nats by more than noise, in the best trial and in most trials. As a policy becomes certain
    of its tokens, every mismatch becomes small, so a falling difference does not show that engine and trainer agree. A
    comparison with the start of the same trial shows whether the difference grows.

    ## Why it matters
    The trainer learns from the completions as if it had sampled them. If another policy sampled the completions, the gradient
    belongs to another objective. Importance ratios correct this mismatch only in part, because they leave out or limit the
    completions that differ most.

    ## What to do
    If the difference grows, the engine probably samples with old weights: check that each update of the weights reaches the
    engine, including the weights of an adapter. If the difference does not grow, compare precision, quantisation, temperature
    and sampling limits of engine and trainer, and copy the weights more often. Turn on the correction by importance ratios if
    the trainer has one.

    ## How sure
    TRL and ms-swift document that such a mismatch can harm the training, and both correct it by importance ratios. We chose the
    limit of 0.2 nats on trainings of tiny models from four seeds. We tested the limit on three other seeds, with weights
    rounded to 3 to 16 bits, old weights, and other temperatures. If the difference exceeded the limit in the second half, the
    reward was lower than with a matching engine in 15 of 15 trainings without importance ratios (by 0.03 to 0.48) and in 12 of
    16 trainings with importance ratios; the other four sampled at a higher temperature, which explores more. With a difference
    below 0.05 nats, 1 of 51 trainings lost more than 0.03 of its reward. The rule also tests the first half of the training,
    because the difference falls as the policy becomes certain, although the reward stays lower. On seeds not used in
    development (`finetuning.py`, seeds 40 to 49), the rule fired in 50 of 50 studies with a mismatch. The rule fired in none of
    30 studies whose engine differs only slightly: it samples in bfloat16, rounds weights to 6 bits or gets new weights every 4
    batches. The p-values come from t-tests over the means of five blocks of values, in which a trend does not count as noise.
    The half with the larger difference is tested, so its p-value is doubled.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="count", advice="literature", source="documentation of TRL and ms-swift")
    goal = "pipeline"
    not_for = policy.KINDS_WITHOUT_POLICY
    explains = Relation(
        rules=("entropy-collapse", "policy-jumps"),
        shares="trials",
        because="The trainer learns from completions of another policy.",
    )

    most: Factor = 0.2
    """Maximum acceptable mean difference of log probabilities, in nats per token."""
    start: Share = 0.1
    """Share of the training that counts as its start. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies with a finding if the true difference is exactly the maximum acceptable difference."""

    def check(self, study: Study) -> Iterator[Finding]:
        measured = [self._measure_difference(entry) for entry in policy.logged_signals(study, "rollout_mismatch")]
        significant = [m for m in measured if m.p_above(self.most) <= self.false_alarms]
        if measured[0] in significant and 2 * len(significant) > len(measured):
            yield self._build_finding(study, significant, len(measured))

    def _measure_difference(self, entry: policy.LoggedSignal) -> _EngineDifference:
        values = entry.curve.values
        early, late = (mean_level_with_trend(values[entry.slice_of_points(*ends)]) for ends in ((0.0, 0.5), (0.5, 1.0)))
        return _EngineDifference(entry.trial, mean_level(values[entry.slice_of_points(0.0, self.start)]), early, late)

    def _build_finding(self, study: Study, significant: Sequence[_EngineDifference], judged_count: int) -> Finding:
        first, trials, metric = significant[0], [m.trial for m in significant], study.signals["rollout_mismatch"]
        larger, start = first.larger, first.start
        grows = first.late.p_value_above_other(start) <= self.false_alarms
        p, rise_p_value = Probability(first.p_above(self.most)), Probability(larger.p_value_above_other(start))
        caption = "The engine and the trainer disagree about the sampled tokens."
        return self.finding(
            say(
                "In the {half} half of the training of {trial}, the probability of a sampled token differs by a factor of {factor} "
                "between the engine that samples and the trainer ({mean} nats, after {start} at the start). The difference "
                "exceeds {limit} nats in {n} of {of}.",
                half="first" if larger is first.early else "second",
                trial=Name(first.trial.name),
                mean=Number(larger.mean),
                factor=Number(math.exp(min(larger.mean, 100.0))),
                start=Number(start.mean),
                limit=Number(self.most),
                n=len(significant),
                of=Count(judged_count, "trial"),
            ),
            action=_SYNC_WEIGHTS if grows else _MATCH_SAMPLING_ADVICE,
            severity="warning",
            # Share of trainings with a mismatch that reach a higher reward without it, measured on the seeds of the limit.
            confidence=0.75 * (1 - p.value),
            trials=trials,
            evidence=(
                curve_plot(metric, caption, trials[:5], lines={"limit": self.most}),
                table(
                    ("difference in the first tenth, nats", Number(start.mean)),
                    ("difference in the first half, nats", Number(first.early.mean), self.most),
                    ("difference in the second half, nats", Number(first.late.mean), self.most),
                    ("p-value that the difference exceeds the limit", p, self.false_alarms),
                    ("p-value of the rise of the difference", rise_p_value, self.false_alarms),
                ),
            ),
        )
