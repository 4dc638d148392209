"""The rule `attention-logits`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.engine.rule import Factor, Grounds, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding
from advisor.model.learning_rate import rate_of
from advisor.model.message import Count, Message, Name, Number, Probability, joined, limited, say
from advisor.model.space import round_significant
from advisor.model.study import Study
from advisor_rules.stability import _attention
from advisor_rules.stability._attention import Logits

_CONFIDENCE = 0.9
"""Confidence before noise is considered: large logits may be the effect of a different fault."""


class AttentionLogits(Rule):
    """Attention logits grow far beyond those of the good trials, and these trials end worse.

    ## What it looks at
    The largest attention logit of the model, which you must log: as `train/max_attention_logit`, or under a name with the words
    attention (attn, qk), logit and max. In each trial, the rule takes the last quarter of the training, on a log scale. These
    logits must exceed the largest ones of all good trials tenfold, and exceed their own level in the second quarter, both beyond
    noise. What follows the last step at which the training loss was at most its start does not count: a loss that explodes for
    another reason takes the logits with it.

    A good trial is one whose results in the second half are not worse than the best trial's at the same steps by a tenth of its
    gain, beyond noise. The other trials, and those that diverged, are judged. So a trial with large logits and a good result
    silences the rule.

    ## Why it matters
    Attention with such logits chooses a single position, and its gradient vanishes. Large models often diverge then; small ones
    stop improving. The rule names the cause of a learning rate that is too high; its advice does not improve the best trial.

    ## What to do
    Stay below the learning rates of these trials. If you need higher rates, normalise queries and keys before their product
    (QK-norm), and search the rate again. Compare the best trials of both: QK-norm does not always help at the best rate. If your
    model has QK-norm, its learned gains have grown; then only lower rates help.

    ## How sure
    Wortsman et al. 2023 (arXiv:2309.14322) and Dehghani et al. 2023 (arXiv:2302.05442) report that attention logits grow before
    large transformers diverge, and that QK-norm prevents it. On tiny transformers with seeds not used in development (`python
    benchmarks/quality/lm_rules.py`), the rule fired in 20 of 20 studies with rates that make the logits explode, and in none of 40
    with QK-norm or lower rates. In all 27 trials with exploded logits, QK-norm lowered the loss at the same rate and seed, by 0.30
    or more. At the best of four rates, the loss was lower with it in 15 of 20 studies, by 0.02 in the median; in another tiny
    transformer, it was higher in ten of ten, by 0.04 to 0.10. Which logits are normal differs between models, so the rule has no
    absolute limit: it compares trials of one study. The factor of ten and the tenth are our choice. In simulated studies whose
    logits are exactly at the factor, the rule fired in 1 to 4 %. This holds as long as a twentieth of the training contains many
    more points than their noise is correlated over: with a correlation of 0.8 between neighbours, it fired in 3 % with 400 points,
    but in 8 to 27 % with 80 or 160. Confidence is 0.9 times one minus the p-value.
    """

    playbook = "Potential fixes for common instability patterns"
    grounds = Grounds(finding="test", advice="literature", source="arXiv 2309.14322, 2302.05442")
    goal = "stability"

    factor: Factor = 10.0
    """Minimum ratio of a trial's late logits to the largest late logits of a good trial. Our choice."""
    material: Share = 0.1
    """Minimum difference of worse results, as a share of the best trial's gain. Our choice; the same as in `stability-mid`."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        """Yield at most one finding."""
        judged = _attention.read(study, self.material)
        limit = self.false_alarms / len(judged)
        good = [entry for entry in judged if entry.p_worse > limit]
        reference = _attention.reference(good)
        grown = [e for e in judged if max(e.p_worse, e.p_grown(reference, self.factor)) <= limit]
        if grown:
            yield self._finding(study, judged, good, grown)

    def _finding(
        self, study: Study, judged: Sequence[Logits], good: Sequence[Logits], grown: Sequence[Logits]
    ) -> Finding:
        worst = max(grown, key=lambda e: e.size)
        reference = _attention.reference(good)
        largest = max(e.size for e in good)
        p = max(max(e.p_worse, e.p_grown(reference, self.factor)) for e in grown)
        action = _action(study, good, grown)
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
            confidence=_CONFIDENCE * (1 - p),
            subject=study.signals["attention_logit"],
            trials=[e.trial for e in grown],
            evidence=(
                curve_plot(
                    study.signals["attention_logit"],
                    "The logits grow in trials that end worse.",
                    [e.trial for e in [*grown[:4], good[0]]],
                ),
                table(
                    ("late logits of these trials", joined(Number(round_significant(e.size), 2) for e in grown[:5])),
                    ("largest late logit of a good trial", Number(largest, 2)),
                    ("smallest ratio", limited(Number(min(e.size for e in grown) / largest, 2), Number(self.factor))),
                    ("p-value", limited(Probability(p), self.false_alarms / len(judged))),
                ),
            ),
            changes=(Advise(text=str(action)),),
        )


def _action(study: Study, good: Sequence[Logits], grown: Sequence[Logits]) -> Message:
    """Return the advice, with the lowest learning rate of the trials with grown logits if all good trials have lower ones."""
    high, low = ([rate_of(study, e.trial) for e in part] for part in (grown, good))
    known = [rate for rate in (*high, *low) if math.isfinite(rate)]
    if len(known) < len(high) + len(low) or len(set(known)) == 1:
        return say("Normalise queries and keys (QK-norm).")
    if max(low) < min(high):
        rates = say("Keep the learning rate below {rate}.", rate=Number(min(high)))
    else:
        rates = say("Keep to the learning rates of the good trials.")
    return say("{rates} Before you search higher ones, normalise queries and keys (QK-norm).", rates=rates)
