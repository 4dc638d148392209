import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Factor, Grounds, Rule, Share
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.learning_rate import peak_learning_rate
from advisor.model.message import Count, Message, Name, Number, Probability, join_items, say
from advisor.model.space import FloatArray, round_significant
from advisor.model.study import Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level, mean_level_with_trend

_MIN_POINTS = 20
"""Minimum number of logged attention logits of a trial; each quarter of the training must suffice to estimate the noise."""
_INITIAL_LOSSES = 5


@dataclass(frozen=True, slots=True)
class _LogitLevels:
    """Logarithms of the largest attention logits of one trial in the second and in the last quarter of the training."""

    trial: Trial
    earlier: MeanLevel
    late: MeanLevel
    p_worse: float
    """p-value of a test whether the trial's late results are worse than the best trial's; see `_p_value_of_worse_results`."""

    @property
    def size(self) -> float:
        """Geometric mean of the logits in the last quarter of the training."""
        return math.exp(self.late.mean)

    def p_value(self, reference: MeanLevel, factor: float) -> float:
        """Return the largest p-value of three tests: that the results are worse, that the late logits exceed `factor` times the
        reference, and that the logits have grown."""
        scaled_level = MeanLevel(self.late.mean - math.log(factor), self.late.error, self.late.freedom)
        return max(self.p_worse, scaled_level.p_value_above_other(reference), self.late.p_value_above_other(self.earlier))


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
    Attention with very large logits chooses a single position, and its gradient vanishes. Large models often diverge with very
    large logits; small models stop improving. The rule names the cause of instability at high learning rates; its advice does
    not improve the best trial.

    ## What to do
    Stay below the learning rates of the trials with large logits. If you need higher rates, normalise queries and keys before
    their product (QK-norm), and search the learning rate again. Compare the best trials with and without QK-norm, because it
    does not always help at the best rate. If your model has QK-norm, its learned gains have grown; only lower learning rates
    help in that case.

    ## How sure
    Wortsman et al. 2023 (arXiv:2309.14322) and Dehghani et al. 2023 (arXiv:2302.05442) report that attention logits grow before
    large transformers diverge, and that QK-norm prevents this growth. On tiny transformers with seeds not used in development
    (`python benchmarks/quality/lm_rules.py`), the rule fired in 20 of 20 studies with learning rates that make the logits
    explode, and in none of 40 studies with QK-norm or lower rates. In all 27 trials with exploded logits, QK-norm lowered the
    loss at the same rate and seed, by 0.30 or more. At the best of four rates, the loss was lower with QK-norm in 15 of 20
    studies, by 0.02 in the median; in another tiny transformer, the loss was higher with QK-norm in ten of ten studies, by 0.04
    to 0.10. Which logits are normal differs between models, so the rule has no absolute limit: it compares trials of one study.
    In simulated studies with late logits at exactly ten times the level of the good trials, the rule fired in 1 to 4 %. If
    neighbouring points were correlated by 0.8, the rule fired in 3 % of studies with 400 points, and in 8 to 27 % with 80 or
    160 points. Confidence is 0.9 times one minus the p-value.
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
        levels = self._read_logits(study)
        limit = self.false_alarms / len(levels)
        good = [e for e in levels if e.p_worse > limit]
        reference = max((e.late for e in good), key=lambda late: late.mean)
        p_values = {e.trial.index: e.p_value(reference, self.factor) for e in levels}
        large_levels = [e for e in levels if p_values[e.trial.index] <= limit]
        if not large_levels:
            return
        worst, largest = max(large_levels, key=lambda e: e.size), math.exp(reference.mean)
        p = max(p_values[e.trial.index] for e in large_levels)
        metric, caption = study.signals["attention_logit"], "The logits grow in trials that end worse."
        text = (
            "The largest attention logit grows to {size} in {trial}, and to at most {normal} in the good trials. {n} of {of} "
            "have such large logits and end worse."
        )
        size, trial = Number(round_significant(worst.size), 2), Name(worst.trial.name)
        yield self.finding(
            say(text, size=size, trial=trial, normal=Number(largest, 2), n=len(large_levels), of=Count(len(levels), "trial")),
            action=_choose_action(study, good, large_levels),
            severity="note",
            # Below 1, because large logits may be the effect of a different fault.
            confidence=0.9 * (1 - p),
            subject=metric,
            trials=[e.trial for e in large_levels],
            evidence=(
                curve_plot(metric, caption, [e.trial for e in [*large_levels[:4], good[0]]]),
                table(
                    ("late logits of these trials", join_items(Number(round_significant(e.size), 2) for e in large_levels[:5])),
                    ("largest late logit of a good trial", Number(largest, 2)),
                    ("smallest ratio of the two", Number(min(e.size for e in large_levels) / largest, 2), self.factor),
                    ("p-value", Probability(p), limit),
                ),
            ),
        )

    def _read_logits(self, study: Study) -> list[_LogitLevels]:
        ranked = study.ranked()
        levels = []
        for trial in [*ranked, *(t for t in study.trials if t.status in ("diverged", "not_learned"))] if ranked else []:
            curve = study.peaks(trial, "attention_logit").finite
            values = np.log(curve.values[(curve.values > 0) & (curve.steps <= _last_step_before_divergence(study, trial))])
            p, quarter = _p_value_of_worse_results(study, trial, ranked[0], self.material), len(values) // 4
            if len(values) >= _MIN_POINTS and p is not None:
                earlier, late = mean_level_with_trend(values[quarter : 2 * quarter]), mean_level_with_trend(values[-quarter:])
                levels.append(_LogitLevels(trial, earlier, late, p))
        if not levels:
            raise MissingData(
                f"no trial logged {_MIN_POINTS} values of the model's largest attention logit; log it as "
                "train/max_attention_logit (the maximum over all layers, in one metric), for example at each step",
                needs="design",
            )
        if levels[0].trial != ranked[0] or len(levels) < 2:
            reason = "the rule compares the attention logits of the best trial with those of another trial; log them in both"
            raise MissingData(reason, needs="trials")
        return levels


def _last_step_before_divergence(study: Study, trial: Trial) -> float:
    """Return the last step at which the training loss was at most its initial value; infinite if no loss was logged. After this
    step, weights and logits may explode with the loss, whatever the cause."""
    losses = study.curve(trial, "train_loss").finite
    if not len(losses):
        return math.inf
    return float(losses.steps[losses.values <= np.median(losses.values[:_INITIAL_LOSSES])][-1])


def _p_value_of_worse_results(study: Study, trial: Trial, best: Trial, material: float) -> float | None:
    """Return the p-value of a test whether results in the second half of the training are worse than those of the best trial at
    the same steps by `material` times its gain; 0 for a trial that diverged, None for fewer than two results."""
    if trial.status == "diverged":
        return 0.0
    if trial == best:
        return 1.0
    costs, best_costs = study.cost_curve(trial).finite, study.cost_curve(best).finite
    gain = float(best_costs.values[0] - best_costs.values.min())
    second_half = slice(len(costs) // 2, None)
    gaps: FloatArray = costs.values[second_half] - np.interp(costs.steps[second_half], best_costs.steps, best_costs.values)
    return mean_level(gaps).p_value_above(material * gain) if len(gaps) >= 2 else None


def _choose_action(study: Study, good: Sequence[_LogitLevels], large_levels: Sequence[_LogitLevels]) -> Message:
    large_rates, good_rates = ([peak_learning_rate(study, e.trial) for e in part] for part in (large_levels, good))
    if not all(map(math.isfinite, (*large_rates, *good_rates))) or len({*large_rates, *good_rates}) == 1:
        return say("Normalise queries and keys (QK-norm).")
    rates = say("Keep to the learning rates of the good trials.")
    if max(good_rates) < min(large_rates):
        rates = say("Keep the learning rate below {rate}.", rate=Number(min(large_rates)))
    return say("{rates} Before you search higher rates, normalise queries and keys (QK-norm).", rates=rates)
