"""Implements the rule `entropy-collapse`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from advisor.computed.reinforcement import policy
from advisor.engine.rule import Grounds, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import Mark, curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Name, Number, Percent, Probability, say, value_with_limit
from advisor.model.study import Study
from advisor_rules.reinforcement._collapse import CollapsedEntropy, CollapseThresholds, find_collapses

_KEEP_EXPLORING_ADVICE = (
    "Keep the policy exploring: lower the learning rate, raise the upper clipping bound (epsilon_high) or the entropy bonus, or "
    "add a KL penalty."
)
_ADVICE_WITHOUT_CLIPPING = (
    "Keep the policy exploring: lower the learning rate, raise the entropy bonus, or add a KL penalty. A higher clipping bound "
    "(epsilon_high) has no effect, because no importance ratio reaches it."
)
_FINDING_CONFIDENCE = 0.85
"""Confidence of a finding whose p-value is 0; it is below 1, because the best remedy depends on the task."""


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
    A policy of low entropy samples nearly the same answer again and again. Such a policy cannot find better answers, and its
    groups lose their advantage, so the rest of the training changes nothing.

    ## What to do
    Lower the learning rate first. Then raise the upper clipping bound alone, so that the probability of rare tokens can grow;
    an entropy bonus or a KL penalty also helps. If the logged share of clipped tokens is always 0, the bound has no effect, and
    the rule does not recommend it. Stop trainings with collapsed entropy early.

    ## How sure
    Cui et al. 2025 (arXiv:2505.22617) report that entropy falls sharply in runs without intervention, and that the reward then
    stops near the ceiling of R = -a exp(H) + b at H = 0. The report also shows the reward ceiling of this formula, fitted to
    the trial up to the collapse; the finding does not depend on the ceiling. DAPO (arXiv:2503.14476) raises the upper clipping
    bound against entropy collapse. We chose all limits of this rule. We measured the rule on tiny models trained with far too
    high learning rates, by hand-written GRPO and by TRL's trainer. On seeds 20 to 29, on which we developed the test of the
    reward, the rule fires in 2 of 120 studies of hand-written GRPO whose learning rates are not far too high. In the two
    studies, the entropy did fall to 16 % of its initial value or less. The mean reward over 14,400 completions at each
    evaluation still rose in the second half of these two trainings, by 17 and 19 % of its range; the rewards of single batches
    were too noisy to show the rise. In trainings three times as long, with three other seeds for each of the two settings, an
    entropy bonus of 0.03 raised the last reward in four of six pairs (by 0.04 to 0.24) and lowered it in one (by 0.19). We
    count both findings as false alarms.
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
        judged = policy.logged_signals(study, "policy_entropy")
        rewards = {entry.trial.index: entry for entry in policy.logged_signals(study, "policy_reward")}
        judged = [entry for entry in judged if entry.trial.index in rewards]
        if not judged:
            raise MissingData("no trial logged both its reward and its entropy at enough steps")
        limits = CollapseThresholds(self.collapsed, self.before, self.gain, self.spread, self.false_alarms)
        found = find_collapses(study, judged, rewards, limits)
        if found and (found[0].trial == judged[0].trial or 2 * len(found) >= len(judged)):
            yield self._build_finding(study, found, len(judged))

    def _build_finding(self, study: Study, found: Sequence[CollapsedEntropy], judged: int) -> Finding:
        first = found[0]
        gain = "gain of the reward in the second half, as a share of its range"
        left = "entropy after the collapse, as a share of the start"
        p = "p-value of an entropy below half of the start"
        clip_ratios = np.concatenate([study.curve(c.trial, "policy_clip_ratio").finite.values for c in found])
        advice = _KEEP_EXPLORING_ADVICE if clip_ratios.any() or not len(clip_ratios) else _ADVICE_WITHOUT_CLIPPING
        return self.finding(
            say(
                "The entropy of {trial} is on average {share} of its start from {step} on. Its reward does not rise in the second "
                "half, although {room}; the mean reward of the last fifth is {reward}. The entropy collapsed in {n} of {of}.",
                trial=Name(first.trial.name),
                share=Percent(first.share),
                step=study.at(first.step),
                reward=Number(first.late_reward),
                room=first.more_reward_reason,
                n=len(found),
                of=Count(judged, "trial"),
            ),
            action=advice,
            severity="warning",
            confidence=_FINDING_CONFIDENCE * (1 - first.p_value),
            trials=[c.trial for c in found],
            evidence=(
                curve_plot(
                    study.signals["policy_entropy"],
                    "The entropy falls to near zero early.",
                    [c.trial for c in found[:5]],
                    marks=tuple(Mark(trial=c.trial.id, step=c.step, label="collapsed", lasting=True) for c in found[:5]),
                    lines={"collapsed": self.collapsed * first.start},
                ),
                table(
                    (left, value_with_limit(Percent(first.share), Percent(self.collapsed))),
                    (gain, value_with_limit(Percent(first.gain), Percent(self.gain))),
                    (p, value_with_limit(Probability(first.p_value), self.false_alarms)),
                    ("late reward", Number(first.late_reward)),
                    ("reward at entropy 0 by the formula of Cui et al.", Number(first.reward_ceiling)),
                ),
            ),
            changes=(Advise(text=advice),),
        )
