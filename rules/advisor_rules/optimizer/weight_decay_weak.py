from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Grounds, Relation, Rule, Share
from advisor.model.change import FixParameter
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import peak_learning_rate
from advisor.model.message import Count, Name, Number, Percent, say
from advisor.model.space import round_significant
from advisor.model.study import Study, Trial
from advisor_rules.optimizer import _adam

_MIN_EFFECTIVE_DECAY_SUM = 0.1
"""Minimum sum of learning rate × weight decay over all steps at which weight decay has an effect. A sum of 0.1 shrinks the
weights by 10 %."""


class WeightDecayWeak(Rule):
    """AdamW's weight decay is too weak to have an effect during the training.

    ## What it looks at
    The rule sums the learning rate times the weight decay over all steps, in each trial with AdamW and a positive weight decay.
    Each step multiplies the weights by 1 - learning rate × weight decay. The sum is therefore the training length divided by
    the timescale of the decay, which is 1 / (learning rate × weight decay) steps. If the learning rate was not logged, its peak
    is used for all steps, which makes the sum too large rather than too small. The rule fires if the weights would shrink by
    less than 3 % in every trial.

    ## Why it matters
    Whether weight decay regularises also depends on the learning rate: a weight decay of 0.01 has an effect within 1,000 steps
    at a learning rate of 0.01, but not at 0.00002. A study that searches a weight decay without effect wastes trials. A weight
    decay that was tuned for a longer training or a smaller batch is often too weak, because fewer steps mean fewer timescales
    of the decay.

    ## What to do
    Fix weight decay at any value instead of searching it. To regularise by weight decay, use values that shrink the weights by
    10 % or more during training. Values this strong also erase part of what a pretrained model has learned. If you change the
    number of steps or the batch size, adjust the weight decay so that the training still spans as many timescales of the decay.

    ## How sure
    The sum follows from AdamW's update. In four trainings of small language models, a weight decay of three times the limit of
    this rule, which shrinks the weights by 10 %, changed the validation loss by 0.001 to 0.008, compared with no weight decay
    at the same seed; the losses were 1.2 to 2.4. On recorded trainings with seeds not used in development (`python
    benchmarks/quality/lm_rules.py`), the rule fired in 20 of 20 studies with too weak a weight decay and in none of 120 others.
    According to arXiv 2405.13698 and 2505.13738, the timescale matters rather than the weight decay alone; according to arXiv
    2510.19093, weight decay decides if a learning rate suits models of other widths. Our recorded trainings do not show which
    timescale is best. Confidence is 0.9, or 0.8 if the weight decay is not searched, because a weak decay may then be intended.
    """

    playbook = "Identifying scientific, nuisance, and fixed hyperparameters"
    grounds = Grounds(finding="mechanism", advice="mechanism", source="arXiv 2405.13698, 2505.13738")
    goal = "regularisation"
    needs_learning = True
    explains = Relation(
        rules=("space-insensitive", "space-boundary", "space-shrink"),
        shares="subject",
        because="Weight decay is too weak to have an effect anywhere in this range.",
    )

    weak: Share = 0.03
    """Maximum share of the weights that a weight decay without effect removes during a training. Our choice."""

    def check(self, study: Study) -> Iterator[Finding]:
        full_trials = [t for t in study.trials if study.feasible[t.index] and study.ended[t.index] and not study.cut_short(t)]
        if not full_trials:
            raise MissingData("no trial ran to its planned end", needs="full_length")
        adamw_trials = [t for t in full_trials if _adam.is_adamw(t)]
        if not adamw_trials:
            raise MissingData("no trial is known to use AdamW", needs="design")
        if study.unit != "step":
            raise MissingData("the logged steps may be epochs, so the decay of the weights is unknown", needs="facts")
        decayed_trials = [t for t in adamw_trials if _adam.weight_decay(t) != 0]
        decays = [d for t in decayed_trials if (d := _weight_shrinkage(study, t)) is not None]
        if not decayed_trials:
            return
        if len(decays) < len(decayed_trials):
            reason = "the weight decay or the learning rate of a trial is unknown; log the two as parameters"
            raise MissingData(reason, needs="facts")
        if not all(_adam.counts_optimizer_steps(d.trial) for d in decays):
            raise MissingData("the number of optimizer steps is unknown; log max_train_steps", needs="facts")
        strongest = max(decays, key=lambda d: d.decay_timescales)
        if strongest.removed_weight_share < self.weak:
            yield self._build_finding(study, decays, strongest)

    def _build_finding(self, study: Study, shrinkages: list[_WeightShrinkage], strongest: _WeightShrinkage) -> Finding:
        parameter = next((name for name in study.searched if _adam.is_weight_decay(name)), None)
        ranked = study.ranked([d.trial for d in shrinkages])
        best = next((d for d in shrinkages if ranked and d.trial is ranked[0]), strongest)
        share, trials = Number(100 * strongest.removed_weight_share, 2, "%"), Count(len(shrinkages), "trial")
        text = "Weight decay hardly acts: it shrinks the weights by at most {share} over a whole training, in {n}."
        message = say(text, share=share, n=trials)
        fix = "Do not count on weight decay to regularise:" if parameter is None else say("Fix {name}:", name=Name(parameter))
        min_decay = round_significant(_MIN_EFFECTIVE_DECAY_SUM / best.learning_rate_sum, 2)
        text = "{fix} at the best trial's learning rate and steps, weight decay has an effect from {acts} upwards."
        action = say(text, fix=fix, acts=min_decay)
        changes = None
        if parameter is not None:
            changes = (FixParameter(parameter=parameter, value=best.weight_decay, why=str(message)),)
        return self.finding(
            message,
            action=action,
            severity="note",
            confidence=0.8 if parameter is None else 0.9,
            subject=parameter,
            side=None if parameter is None else "low",
            trials=[d.trial for d in shrinkages],
            evidence=table(
                ("trial with the strongest decay", Name(strongest.trial.name)),
                ("weight decay of this trial", strongest.weight_decay),
                ("learning rate of this trial, summed over the steps", strongest.learning_rate_sum),
                ("length of this trial's training, in timescales of the decay", strongest.decay_timescales),
                ("limit", say("weights shrink by {weak} during the training", weak=Percent(self.weak))),
            ),
            changes=changes,
        )


@dataclass(frozen=True, slots=True)
class _WeightShrinkage:
    trial: Trial
    weight_decay: float
    learning_rate_sum: float

    @property
    def decay_timescales(self) -> float:
        return self.learning_rate_sum * self.weight_decay

    @property
    def removed_weight_share(self) -> float:
        """Share of a weight that weight decay removes by the end of training if gradients do not restore it."""
        return -math.expm1(-self.decay_timescales)


def _weight_shrinkage(study: Study, trial: Trial) -> _WeightShrinkage | None:
    decay, rates = _adam.weight_decay(trial), study.curve(trial, "learning_rate").finite
    last = max((int(c.steps[-1]) for c in (rates, study.cost_curve(trial)) if len(c)), default=0)
    steps = np.nanmax([study.planned_steps(trial), last + 1])
    peak = max(peak_learning_rate(study, trial), float(rates.values.max()) if len(rates) else 0.0)
    if len(rates) > 1 and rates.steps[-1] >= 0.9 * last:
        rate_sum = float(rates.values @ np.diff(rates.steps, prepend=rates.steps[0] - 1))
    else:
        rate_sum = peak * float(steps)
    return _WeightShrinkage(trial, decay, rate_sum) if decay > 0 and rate_sum > 0 else None
