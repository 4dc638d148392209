from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.computed.reinforcement import policy
from advisor.engine.rule import Factor, Grounds, Relation, Rule, Share
from advisor.model.change import Change, SetRange
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding
from advisor.model.learning_rate import rate_name
from advisor.model.message import Count, Message, Name, Number, Probability, say
from advisor.model.space import round_significant
from advisor.model.study import Study, Trial
from advisor.stats.blocks import mean_level
from advisor.stats.tails import find_outliers

_SMALLER_UPDATES_ADVICE = "Lower the learning rate, or make fewer optimizer steps on each batch of completions."
_MIN_JUMP_STEPS = 3
"""Minimum number of steps at which the policy is far from its reference; more than one, because the estimate at one step can
depend on a single token."""
_FINDING_CONFIDENCE = 0.9
"""Confidence of a finding whose p-value is 0; it is below 1, because a jump can also come from a single odd batch of
prompts."""
_UNTESTED_JUMP_CONFIDENCE = 0.7
"""Confidence of a finding about a curve that jumps so often that no test can distinguish its jumps from its other points. Our
choice."""


@dataclass(frozen=True, slots=True)
class _KlJumps:
    trial: Trial
    p_value: float | None
    """p-value of the test for outliers; None if jumps are too frequent to be outliers."""
    step: int
    ratio: float
    """Ratio of the KL divergence at the largest jump to its running median."""


@dataclass(frozen=True, slots=True)
class _ReferenceDeparture:
    """A trial whose policy moved far from its reference and earns a lower reward than at its start."""

    trial: Trial
    p_value: float
    """Larger p-value of two tests: that the late KL divergence exceeds the limit, and that the late reward lies below the first
    rewards."""
    step: int
    late_kl: float
    first_reward: float
    late_reward: float


class PolicyJumps(Rule):
    """The policy jumps away from its reference: its KL divergence rises suddenly, or is large while the reward is below its
    initial value.

    ## What it looks at
    The rule compares the logged KL divergence between the policy and its reference with the running median of this divergence.
    (TRL logs this divergence as `kl`, but only if `beta` is above 0.) A KL divergence counts as a jump if it exceeds the
    running median tenfold and lies beyond the tail of the other points, or if it exceeds the median a hundredfold. The KL
    divergence must jump at three or more steps and reach 1 nat per token at these steps. Jumps at the very start are not found,
    because no earlier level exists for comparison. If TRL weights the KL divergence by the policy's own importance ratios
    (`use_bias_correction_kl`), jumps look small. A trial also counts if, in the second half of its training, its KL divergence
    exceeds 1 nat per token and its reward lies below the mean of its first rewards, both by more than noise. The first rewards
    are the first 5 % of all rewards, without rewards of a policy that is already far from its reference. The rule fires if the
    best trial or at least half of the trials jump, or if they are far from the reference with a lower reward. A KL divergence
    that grows while the reward rises is normal, because the policy learns.

    ## Why it matters
    After a jump, the samples and importance ratios of the policy no longer approximate those of its reference. Tokens that are
    nearly impossible for the reference become likely, and later steps start from the changed policy. In our recorded trainings,
    trials with such jumps end at lower rewards.

    ## What to do
    Lower the learning rate, make fewer optimizer steps on each batch of completions, or raise the KL coefficient. Look at
    completions from steps around the jump.

    ## How sure
    Jumps are tested as in the rule `stability-spikes`: an exponential tail is fitted to most of the points, and the p-value is
    corrected for the number of trials. A curve that jumps at very many steps has no such tail, so its jumps are not tested, and
    the confidence of the finding is 0.7. The test of a policy that is far from its reference compares the late KL divergence
    with 1 nat and the late reward with the first rewards; confidence follows from the larger p-value. The significance level of
    this test is corrected for the number of trials if only the best trial is far from its reference, but not if at least half
    of two or more trials are. We measured the rule on tiny models trained with too high learning rates and many steps on each
    batch, by hand-written GRPO and by TRL's trainer with a `beta` of 0.001; with TRL, it fired in 6 of 6 studies with seeds not
    used in development (six of 50 to 59).
    """

    playbook = "Potential fixes for common instability patterns"
    grounds = Grounds(finding="test", advice="literature", source="arXiv 1707.06347")
    goal = "stability"
    not_for = policy.KINDS_WITHOUT_POLICY
    explains = Relation(
        rules=("entropy-collapse", "groups-without-advantage"),
        shares="trials",
        because="The policy jumped, and its samples since then are nearly always the same.",
    )

    factor: Factor = 10.0
    """Minimum ratio of a jump to the running median. Our choice."""
    far: Factor = 1.0
    """Minimum KL divergence of a policy that jumped, in nats per token. We chose a high limit because near the reference, large
    ratios are harmless."""
    wild: Factor = 100.0
    """Ratio to the running median at which a jump counts even if the curve jumps so often that no point is an outlier. Our
    choice."""
    false_alarms: Share = 0.05
    """Maximum share of healthy studies in which noise raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        kl_signals = policy.logged_signals(study, "policy_kl")
        jumps = [j for entry in kl_signals if (j := self._measure_jumps(entry, len(kl_signals))) is not None]
        departures = (self._measure_departure_from_reference(study, entry) for entry in kl_signals)
        significant = [d for d in departures if d is not None and d.p_value <= self.false_alarms]
        best_trial_alpha = self.false_alarms / len(kl_signals)
        if jumps and (jumps[0].trial == kl_signals[0].trial or 2 * len(jumps) >= len(kl_signals)):
            yield self._report_jumps(study, jumps, len(kl_signals))
        # Noise seldom makes half of several trials significant at once, so this needs no correction for the number of trials.
        elif len(significant) > 1 and 2 * len(significant) >= len(kl_signals):
            yield self._report_departures(study, significant, len(kl_signals), self.false_alarms)
        elif significant and significant[0].trial == kl_signals[0].trial and significant[0].p_value <= best_trial_alpha:
            yield self._report_departures(study, significant, len(kl_signals), best_trial_alpha)

    def _measure_jumps(self, entry: policy.LoggedSignal, trials: int) -> _KlJumps | None:
        is_positive = entry.curve.values > 0
        values, steps = entry.curve.values[is_positive], entry.curve.steps[is_positive]
        outliers = find_outliers(values, self.false_alarms / trials, self.factor)
        if outliers is None or not (len(outliers.indices) or outliers.largest_ratio >= self.wild):
            return None
        is_jump = (outliers.ratios_to_median >= self.factor) & (values >= self.far)
        if is_jump.sum() < _MIN_JUMP_STEPS:
            return None
        largest = int(np.argmax(outliers.ratios_to_median * is_jump))
        p = outliers.p_value if len(outliers.indices) else None
        return _KlJumps(entry.trial, p, int(steps[largest]), float(outliers.ratios_to_median[largest]))

    def _measure_departure_from_reference(self, study: Study, entry: policy.LoggedSignal) -> _ReferenceDeparture | None:
        reward = study.curve(entry.trial, "policy_reward").finite
        far_indices = np.flatnonzero(entry.curve.values > self.far)
        if len(reward) < policy.MIN_SIGNAL_POINTS or not len(far_indices):
            return None
        kl, step = mean_level(entry.curve.values[entry.slice_of_points(0.5, 1.0)]), int(entry.curve.steps[far_indices[0]])
        first_reward, late_reward = policy.initial_and_late_reward(reward.values, int(np.searchsorted(reward.steps, step)))
        p = max(kl.p_value_above(self.far), first_reward.p_value_above_other(late_reward))
        return _ReferenceDeparture(entry.trial, p, step, kl.mean, first_reward.mean, late_reward.mean)

    def _report_jumps(self, study: Study, jumps: list[_KlJumps], judged_count: int) -> Finding:
        largest_jump, trials, metric = max(jumps, key=lambda j: j.ratio), [j.trial for j in jumps], study.signals["policy_kl"]
        p, limit = largest_jump.p_value, self.false_alarms / judged_count
        action, changes = _search_lower_rates(study)
        marks = [Mark(trial=j.trial.id, step=j.step, label="jump") for j in jumps[:5]]
        text = (
            "The KL divergence of {trial} jumps to {ratio} times its running median at {step}. The divergence jumps in {n} "
            "of {of}."
        )
        trial, ratio, step = Name(largest_jump.trial.name), Number(min(largest_jump.ratio, 1e6), 2), study.at(largest_jump.step)
        return self.finding(
            say(text, trial=trial, ratio=ratio, step=step, n=len(jumps), of=Count(judged_count, "trial")),
            action=action,
            severity="warning",
            confidence=_UNTESTED_JUMP_CONFIDENCE if p is None else _FINDING_CONFIDENCE * (1 - p),
            trials=trials,
            evidence=(
                curve_plot(metric, "The policy jumps away from its reference.", trials[:5], marks=marks),
                table(
                    ("trials that jump", say("{n} of {of}", n=len(jumps), of=judged_count)),
                    ("largest ratio to the running median", Number(largest_jump.ratio), self.factor),
                    ("p-value", "not tested") if p is None else ("p-value", Probability(p), limit),
                ),
            ),
            changes=changes,
        )

    def _report_departures(self, study: Study, departures: list[_ReferenceDeparture], judged: int, limit: float) -> Finding:
        first, trials = departures[0], [d.trial for d in departures]
        metrics = (study.signals["policy_kl"], study.signals["policy_reward"])
        action, changes = _search_lower_rates(study)
        caption = "The policy is far from its reference and earns a lower reward than at its start."
        marks = [Mark(trial=d.trial.id, step=d.step, label="far away", lasting=True) for d in departures[:5]]
        return self.finding(
            say(
                "The policy of {trial} has a KL divergence of {kl} nats per token from its reference, and its mean reward "
                "falls from {before} to {after}. Policies depart in this way in {n} of {of}.",
                trial=Name(first.trial.name),
                kl=Number(first.late_kl, 2),
                before=Number(first.first_reward),
                after=Number(first.late_reward),
                n=len(departures),
                of=Count(judged, "trial"),
            ),
            action=action,
            severity="warning",
            confidence=_FINDING_CONFIDENCE * (1 - first.p_value),
            trials=trials,
            evidence=(
                curve_plot(metrics, caption, trials[:5], marks=marks),
                table(
                    ("KL divergence in the second half", Number(first.late_kl), self.far),
                    ("mean reward in the second half", Number(first.late_reward), first.first_reward),
                    ("p-value", Probability(first.p_value), limit),
                ),
            ),
            changes=changes,
        )


def _search_lower_rates(study: Study) -> tuple[Message, tuple[Change, ...] | None]:
    name = rate_name(study)
    domain = study.searched.get(name) if name is not None else None
    if name is None or domain is None or domain.low is None or domain.high is None or domain.low <= 0:
        return say(_SMALLER_UPDATES_ADVICE), None
    low, high = round_significant(domain.low / 10), round_significant(math.sqrt(domain.low * domain.high))
    why = "The policy jumps at these learning rates, so we search down to a tenth of the lowest rate."
    action = say("Search a {name} of {low} to {high}.", name=Name(name), low=low, high=high)
    return action, (SetRange(parameter=name, low=low, high=high, scale="log", why=why),)
