from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from advisor.contract.metric_direction import (
    SPLIT_BY_WORD,
    direction_of_metric,
    quantity_words,
    split_of_metric,
    words_of_metric,
)
from advisor.engine.rule import Count as Points, Grounds, Rule, Share
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Name, Number, Percent, Probability, join_items, say
from advisor.model.study import Study, Trial
from advisor.model.usual_rates import is_fine_tuning
from advisor.stats import ranks
from advisor.stats.blocks import MeanLevel, mean_level
from advisor.stats.curve import noise_sd

_LIMIT_FORGETTING_ADVICE = (
    "Decide how much you may lose on {metric}, and limit it in the next study: mix old data into the batches, lower the learning "
    "rate, or train a LoRA adapter instead of all weights."
)
_MIN_EVALUATIONS = 6
_METRIC_VARIANT_WORDS = frozenset(
    "kl recon reconstruction aux reg cls box classification total weighted balance router z token tokens chosen rejected reward "
    "rewards margin margins ema best last min max top smoothed std sd full".split()
)
"""Words in metric names that mark a part or a variant of another metric on the same data."""
_DATASET_WORDS = frozenset(
    "old new base source general original pretrain pretrained pretraining ood held heldout retain retained replay previous "
    "upstream wiki wikitext wikipedia".split()
)


@dataclass(frozen=True, slots=True)
class _MetricDecline:
    trial: Trial
    first: float
    later: float
    """Mean of the metric over the second half of the evaluations."""
    relative: float
    """Decline of the metric as a share of its first value; negative if the metric improved."""
    p_value: float
    """p-value of the decline, corrected for the number of tested metrics: the larger p-value of two tests, that the metric's
    late level is worse than its first value, and that the objective improves steadily."""


class Forgetting(Rule):
    """While fine-tuning improves the objective, the model gets worse on other data.

    ## What it looks at
    The rule reads metrics that measure the objective's quantity on another dataset: for example `eval_old_accuracy`, if the
    objective is `eval_new_accuracy`. The metric's name must differ from the name of the objective by a word for data, such as
    "old", "base" or "wiki", or by the name of a dataset. Dataset names stand before a slash (`eval_sums/loss`) or in a runtime
    metric of Transformers (`eval_sums_runtime`). The rule compares the mean of the metric over the second half of each trial
    with the first evaluation of the same trial. The metric on the other data must get worse by at least a tenth of its first
    value, by more than noise, while the objective improves steadily (rank correlation with the steps). The decline and the
    steady improvement must both occur in the best trial and in most of the best five trials. The rule judges only studies whose
    trials start from a pretrained model.

    ## Why it matters
    Fine-tuning moves weights that other abilities depend on. The study ranks trials by the objective alone, so its best trial
    may have lost most of what the model could do before.

    ## What to do
    Decide what the model must still be able to do, and evaluate it. Mix data that the model was trained on before into the
    batches, lower the learning rate, stop earlier, or train a LoRA adapter. Choose the trial by both the objective and the
    result on the old data.

    ## How sure
    Luo et al. 2023 (arXiv:2308.08747) find such forgetting in language models of 1 to 7 billion parameters; Biderman et al.
    2024 (arXiv:2405.09673) find that LoRA forgets less than full fine-tuning and learns less. Confidence is 0.9 times (1 - p),
    where p is the larger of the two p-values, corrected for the number of metrics. We measured the rule on digit classifiers
    and on language models trained by TRL's SFTTrainer; all were evaluated before the first training step. The only false alarm
    with TRL was a study that replays old texts: its loss on these texts still rose by 12 % in all three trials.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="test", advice="literature", source="arXiv 2308.08747, 2405.09673")
    goal = "regularisation"
    not_for = frozenset({"gan"})

    best: Points = 5
    """Number of best trials to judge. Our choice."""
    material: Share = 0.1
    """Minimum decline of the metric, as a share of its first value. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        if not is_fine_tuning(study):
            raise MissingData("no trial is known to start from a pretrained model", needs="design")
        metrics = _metrics_on_other_data(study)
        if not metrics:
            raise MissingData("no trial evaluated the objective's quantity on other data", needs="design")
        trials = study.ranked()[: self.best]
        declines = {metric: _measure_declines(study, trials, metric, len(metrics)) for metric in metrics}
        if not any(declines.values()):
            raise MissingData("no good trial evaluated often enough to tell a decline from noise; evaluate six times or more")
        for metric, metric_declines in declines.items():
            significant = [d for d in metric_declines if d.p_value <= self.false_alarms and d.relative >= self.material]
            if significant and significant[0].trial == metric_declines[0].trial and 2 * len(significant) > len(metric_declines):
                yield self._build_finding(study, metric, significant, len(metric_declines))

    def _build_finding(self, study: Study, metric: str, declined: Sequence[_MetricDecline], judged_count: int) -> Finding:
        first, trials, objective = declined[0], [d.trial for d in declined], study.spec.objective.metric
        names = {"metric": Name(metric), "objective": Name(objective)}
        caption = say("{metric} declines while {objective} improves.", **names)
        declines = join_items(Percent(d.relative) for d in declined)
        text = (
            "While {objective} improves, {metric} of {trial} goes from {before} to {after}. This metric also gets worse "
            "in {n} of {of}."
        )
        trial, before, after = Name(first.trial.name), Number(first.first), Number(first.later)
        return self.finding(
            say(text, trial=trial, before=before, after=after, n=len(declined), of=Count(judged_count, "good trial"), **names),
            action=say(_LIMIT_FORGETTING_ADVICE, metric=Name(metric)),
            severity="warning",
            # Below 1, because only the user can say if the measured decline matters.
            confidence=0.9 * (1 - first.p_value),
            subject=metric,
            trials=trials,
            evidence=(
                curve_plot((objective, metric), caption, trials[:5]),
                table(
                    ("decline, as a share of the first value", Percent(first.relative), self.material),
                    ("decline of the metric in the best trials", declines),
                    ("p-value", Probability(first.p_value), self.false_alarms),
                ),
            ),
        )


def _metrics_on_other_data(study: Study) -> list[str]:
    objective = study.spec.objective.metric
    metric_words = [words_of_metric(name) for name in study.metrics]
    timed = {word for name in metric_words if name[-1:] == ("runtime",) for word in name[:-1]}
    return sorted(name for name in study.metrics if name != objective and _evaluates_other_data(name, objective, timed))


def _evaluates_other_data(name: str, target: str, timed: Set[str]) -> bool:
    """Return True if the two metric names differ by a word for a dataset. `timed` holds the dataset names for which
    Transformers logged a metric `eval_NAME_runtime`."""
    if split_of_metric(name) not in ("valid", "test") or name.endswith((".min", ".max")):
        return False
    if quantity_words(name)[-1:] != quantity_words(target)[-1:] or direction_of_metric(name) != direction_of_metric(target):
        return False
    own_words, objective_words = (frozenset(words_of_metric(n)) - SPLIT_BY_WORD.keys() for n in (name, target))
    if (own_words ^ objective_words) & _METRIC_VARIANT_WORDS:
        return False
    # A dataset name may stand before a slash, such as "sums" in `eval_sums/loss`.
    parts = [part for part in name.split("/")[:-1] if split_of_metric(part) and direction_of_metric(part) is None]
    datasets = {word for part in parts for word in quantity_words(part)}
    added, removed = own_words - objective_words, objective_words - own_words
    return bool(added & (_DATASET_WORDS | timed | datasets) or (added and removed & _DATASET_WORDS))


def _measure_declines(study: Study, trials: Sequence[Trial], metric: str, tests: int) -> list[_MetricDecline]:
    """Return the change of the metric in each trial with enough evaluations. `tests` is the number of tested metrics, by which
    each p-value is multiplied."""
    declines, sign = [], 1.0 if study.minimize else -1.0
    for trial in trials:
        costs, objective = sign * study.metric(trial, metric).finite.values, study.cost_curve(trial).finite
        if min(len(costs), len(objective)) >= _MIN_EVALUATIONS:
            late = mean_level(costs[len(costs) // 2 :])
            first = MeanLevel(float(costs[0]), noise_sd(costs), len(costs) - 3.0)
            p_gain = ranks.p_value_of_fall(objective.steps.astype(np.float64), objective.values)
            p = min(1.0, tests * max(late.p_value_above_other(first), p_gain))
            relative = (late.mean - first.mean) / abs(first.mean) if first.mean else 0.0
            declines.append(_MetricDecline(trial, sign * first.mean, sign * late.mean, relative, p))
    return declines
