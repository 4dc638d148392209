"""The rule `forgetting`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.engine.rule import Count as Points, Grounds, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Name, Number, Percent, Probability, join_items, say, value_with_limit
from advisor.model.study import Study
from advisor.model.usual_rates import is_fine_tuning
from advisor_rules.finetuning._other_data import MetricDecline, measure_metric_declines, metrics_on_other_data

_LIMIT_FORGETTING_ADVICE = (
    "Decide how much you may lose on {metric}, and limit it in the next study: mix old data into the batches, lower the learning "
    "rate, or train a LoRA adapter instead of all weights."
)
_FINDING_CONFIDENCE = 0.9
"""Confidence of a finding whose p-value is 0; it is below 1, because only the user can say if the measured decline matters."""


class Forgetting(Rule):
    """While fine-tuning improves the objective, the model gets worse on other data.

    ## What it looks at
    The rule reads metrics that measure the objective's quantity on another dataset: for example `eval_old_accuracy`, if the
    objective is `eval_new_accuracy`. The metric name must differ from the objective by a word for data, such as "old", "base"
    or "wiki", or by the name of a dataset. Dataset names stand before a slash (`eval_sums/loss`) or in a runtime metric of
    Transformers (`eval_sums_runtime`). The rule compares the mean of the metric over the second half of each trial with the
    first evaluation of the same trial. The metric on the other data must get worse by at least a tenth of its first value, by
    more than noise, while the objective improves steadily (rank correlation with the steps). The decline and the steady
    improvement must both occur in the best trial and in most of the best five trials. The rule judges only studies whose trials
    start from a pretrained model.

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
    where p is the larger of the two p-values, corrected for the number of metrics. We chose a tenth as the minimum decline. We
    measured the rule on digit classifiers and on language models trained by TRL's SFTTrainer; all were evaluated before the
    first training step. The only false alarm with TRL was a study that replays old texts: its loss on these texts still rose by
    12 % in all three trials.
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
        metrics = metrics_on_other_data(study)
        if not metrics:
            raise MissingData("no trial evaluated the objective's quantity on other data", needs="design")
        trials = study.ranked()[: self.best]
        judged = {metric: measure_metric_declines(study, trials, metric, len(metrics)) for metric in metrics}
        if not any(judged.values()):
            raise MissingData("no good trial evaluated often enough to tell a decline from noise; evaluate six times or more")
        for metric, found in judged.items():
            worse = [d for d in found if d.p_value <= self.false_alarms and d.relative_decline >= self.material]
            if worse and worse[0].trial == found[0].trial and 2 * len(worse) > len(found):
                yield self._build_finding(study, metric, worse, len(found))

    def _build_finding(self, study: Study, metric: str, worse: Sequence[MetricDecline], judged: int) -> Finding:
        first = worse[0]
        objective = study.spec.objective.metric
        action = say(_LIMIT_FORGETTING_ADVICE, metric=Name(metric))
        return self.finding(
            say(
                "While {objective} improves, {metric} of {trial} goes from {before} to {after}. This metric also gets worse "
                "in {n} of {of}.",
                objective=Name(objective),
                metric=Name(metric),
                trial=Name(first.trial.name),
                before=Number(first.first_value),
                after=Number(first.later_mean),
                n=len(worse),
                of=Count(judged, "good trial"),
            ),
            action=action,
            severity="warning",
            confidence=_FINDING_CONFIDENCE * (1 - first.p_value),
            subject=metric,
            trials=[d.trial for d in worse],
            evidence=(
                curve_plot(
                    (objective, metric),
                    say("{metric} declines while {objective} improves.", metric=Name(metric), objective=Name(objective)),
                    [d.trial for d in worse[:5]],
                ),
                table(
                    (
                        "decline, share of the first value",
                        value_with_limit(Percent(first.relative_decline), Percent(self.material)),
                    ),
                    ("decline of the metric in the best trials", join_items(Percent(d.relative_decline) for d in worse)),
                    ("p-value", value_with_limit(Probability(first.p_value), self.false_alarms)),
                ),
            ),
            changes=(Advise(text=str(action)),),
        )
