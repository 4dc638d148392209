"""Implements the rule `attention-logits`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.engine.rule import Factor, Grounds, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import Evidence, curve_plot, table
from advisor.model.finding import Finding
from advisor.model.learning_rate import peak_learning_rate
from advisor.model.message import Count, Message, Name, Number, Probability, join_items, say, value_with_limit
from advisor.model.space import round_significant
from advisor.model.study import Study
from advisor_rules.stability import _attention
from advisor_rules.stability._attention import AttentionLogitLevels

_FINDING_CONFIDENCE = 0.9
"""Confidence of a finding whose p-value is 0; it is below 1, because large logits may be the effect of a different fault."""


class AttentionLogits(Rule):
    """In trials that end with worse results, attention logits grow far beyond those of the good trials.

    ## What it looks at
    The rule reads the largest attention logit of the model, which you must log: as `train/max_attention_logit`, or under a name
    with the words attention (attn, qk), logit and max. In each trial, the rule averages the logits of the last quarter of the
    training on a log scale. The late logits must exceed the largest late logits of all good trials tenfold, and must exceed the
    trial's own logits in the second quarter, both by more than noise. Logits do not count from the step at which the loss rises
    above its initial level for good, because a loss that explodes for another reason also makes the logits explode.

    A trial is good unless its results in the second half are worse than those of the best trial at the same steps, by more than
    noise and by more than a tenth of the best trial's improvement. The rule judges all other trials, including those that
    diverged. A trial with large logits and a good result therefore prevents a finding.

    ## Why it matters
    Attention with very large logits chooses a single position, and its gradient vanishes. Large models often diverge with such
    logits; small models stop improving. The rule names the cause of instability at high learning rates; its advice does not
    improve the best trial.

    ## What to do
    Stay below the learning rates of the trials with large logits. If you need higher rates, normalise queries and keys before
    their product (QK-norm), and search the learning rate again. Compare the best trials with and without QK-norm, because it
    does not always help at the best rate. If your model has QK-norm, its learned gains have grown; only lower learning rates
    help in that case.

    ## How sure
    Wortsman et al. 2023 (arXiv:2309.14322) and Dehghani et al. 2023 (arXiv:2302.05442) report that attention logits
    grow before large transformers diverge, and that QK-norm prevents this growth. On tiny transformers with seeds not used in
    development (`python benchmarks/quality/lm_rules.py`), the rule fired in 20 of 20 studies with learning rates that make the
    logits explode, and in none of 40 studies with QK-norm or lower rates. In all 27 trials with exploded logits, QK-norm
    lowered the loss at the same rate and seed, by 0.30 or more. At the best of four rates, the loss was lower with QK-norm in
    15 of 20 studies, by 0.02 in the median; in another tiny transformer, the loss was higher with QK-norm in ten of ten
    studies, by 0.04 to 0.10. Which logits are normal differs between models, so the rule has no absolute limit: it compares
    trials of one study. We chose the factor of ten for the logits and the tenth of the improvement for the results. In
    simulated studies whose late logits are exactly ten times those of the good trials, the rule fired in 1 to 4 %. The rule
    fires more often if neighbouring points are correlated and few: at a correlation of 0.8, it fired in 3 % of studies with 400
    points, but in 8 to 27 % with 80 or 160 points. Confidence is 0.9 times one minus the p-value.
    """

    playbook = "Potential fixes for common instability patterns"
    grounds = Grounds(finding="test", advice="literature", source="arXiv 2309.14322, 2302.05442")
    goal = "stability"

    factor: Factor = 10.0
    """Minimum ratio of a trial's late logits to the largest late logits of a good trial. Our choice."""
    material: Share = 0.1
    """Minimum difference from the best trial's results at which results count as worse, as a share of the best trial's
    improvement. We chose the same share as in `stability-mid`."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        judged = _attention.read_attention_logits(study, self.material)
        limit = self.false_alarms / len(judged)
        good = [entry for entry in judged if entry.worse_results_p_value > limit]
        reference = _attention.largest_good_logits(good)
        grown = [e for e in judged if max(e.worse_results_p_value, e.growth_p_value(reference, self.factor)) <= limit]
        if grown:
            yield self._build_finding(study, judged, good, grown)

    def _build_finding(
        self,
        study: Study,
        judged: Sequence[AttentionLogitLevels],
        good: Sequence[AttentionLogitLevels],
        grown: Sequence[AttentionLogitLevels],
    ) -> Finding:
        worst = max(grown, key=lambda e: e.size)
        reference = _attention.largest_good_logits(good)
        largest = max(e.size for e in good)
        p = max(max(e.worse_results_p_value, e.growth_p_value(reference, self.factor)) for e in grown)
        action = _choose_action(study, good, grown)
        return self.finding(
            say(
                "The largest attention logit grows to {size} in {trial}, and to at most {normal} in the good trials. {n} of {of} "
                "have such large logits and end worse.",
                size=Number(round_significant(worst.size), 2),
                trial=Name(worst.trial.name),
                normal=Number(largest, 2),
                n=len(grown),
                of=Count(len(judged), "trial"),
            ),
            action=action,
            severity="note",
            confidence=_FINDING_CONFIDENCE * (1 - p),
            subject=study.signals["attention_logit"],
            trials=[e.trial for e in grown],
            evidence=self._evidence(study, good, grown, p, self.false_alarms / len(judged)),
            changes=(Advise(text=str(action)),),
        )

    def _evidence(
        self, study: Study, good: Sequence[AttentionLogitLevels], grown: Sequence[AttentionLogitLevels], p: float, limit: float
    ) -> tuple[Evidence, ...]:
        largest = max(e.size for e in good)
        return (
            curve_plot(
                study.signals["attention_logit"],
                "The logits grow in trials that end worse.",
                [e.trial for e in [*grown[:4], good[0]]],
            ),
            table(
                ("late logits of these trials", join_items(Number(round_significant(e.size), 2) for e in grown[:5])),
                ("largest late logit of a good trial", Number(largest, 2)),
                ("smallest ratio", value_with_limit(Number(min(e.size for e in grown) / largest, 2), Number(self.factor))),
                ("p-value", value_with_limit(Probability(p), limit)),
            ),
        )


def _choose_action(study: Study, good: Sequence[AttentionLogitLevels], grown: Sequence[AttentionLogitLevels]) -> Message:
    """Return the advice. It names the lowest learning rate with grown logits if all good trials have lower rates."""
    high, low = ([peak_learning_rate(study, e.trial) for e in part] for part in (grown, good))
    known = [rate for rate in (*high, *low) if math.isfinite(rate)]
    if len(known) < len(high) + len(low) or len(set(known)) == 1:
        return say("Normalise queries and keys (QK-norm).")
    if max(low) < min(high):
        rates = say("Keep the learning rate below {rate}.", rate=Number(min(high)))
    else:
        rates = say("Keep to the learning rates of the good trials.")
    return say("{rates} Before you search higher rates, normalise queries and keys (QK-norm).", rates=rates)
