from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Count as Points, Factor, Grounds, Rule, Share
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Name, Number, Probability, join_items, say
from advisor.model.study import Signal, Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level

_LOG_PROBABILITY_SIGNALS: tuple[Signal, ...] = ("valid_chosen_logp", "train_chosen_logp")
"""Signals in order of preference; evaluations come first, because all evaluations use the same answers."""
MIN_LOG_PROBABILITIES = 6
"""Minimum number of logged values to distinguish a fall from noise."""
_PREFERRED_ANSWERS_ADVICE = (
    "Lower the learning rate, or add the loss of the preferred answers (`sft` in TRL's loss_type), and compare trials by {metric} "
    "as well."
)


@dataclass(frozen=True, slots=True)
class _LogProbabilityFall:
    """Mean log probabilities of the preferred answers at the start and over the second half of the training."""

    trial: Trial
    metric: str
    start: float
    late: float
    p_value: float

    @property
    def ratio(self) -> float:
        """Ratio of the late cross-entropy to its initial value, which does not depend on the length of the answers."""
        return self.late / self.start


class ChosenUnlikely(Rule):
    """Preference training makes the preferred answers unlikely, which the share of correctly ordered pairs does not show.

    ## What it looks at
    The rule reads the mean log probability of the preferred answers (TRL's `logps/chosen`), from evaluations if they log it at
    least six times, otherwise from training. The rule compares the mean over the second half of each trial with the trial's
    first evaluation or, for a training curve, with the first tenth of the curve. The rule fires if the late log probability of
    the best trial is more than 1.5 times as far below zero as its initial value, by more than noise. The ratio of two
    cross-entropies does not depend on the length of the answers.

    ## Why it matters
    DPO rewards the distance between the two answers of a pair. The model can increase the distance by making both answers
    unlikely, the rejected answer even more than the preferred one. Accuracy and margin keep rising while the model moves
    probability to answers that are in no pair.

    ## What to do
    Watch the log probability of preferred answers beside the accuracy, and generate some answers. Lower the learning rate,
    train for fewer steps, raise beta, or add the cross-entropy loss of the preferred answers.

    ## How sure
    Pal et al. 2024 (arXiv:2402.13228) and Razin et al. 2024 (arXiv:2410.08847) describe how this log probability falls and why
    that is harmful. Pang et al. 2024 (arXiv:2404.19733) find that adding the loss of the preferred answers prevents the fall. A
    small fall of this log probability is usual and harmless. The p-value comes from a t-test that compares the means of five
    blocks of values with 1.5 times the first value. For evaluations, the first value counts as exact, because all evaluations
    use the same answers. For training values, Welch's test also accounts for the error of the first value. On tiny models
    trained by TRL's DPOTrainer on pairs whose preferred answers are right (`finetuning.py --by trl`, seeds 40 to 49, not used
    in development), the rule fired in 20 of 20 studies with far too high learning rates, or with a high rate and a small beta.
    The rule fired in none of 30 studies with usual learning rates, with a large beta, or with the same high rates and the added
    loss of the preferred answers. Confidence is 0.8 times (1 - p), because we measured neither larger models nor answers that
    another model wrote, and few studies with intermediate learning rates.
    """

    playbook = "Examining the training curves"
    grounds = Grounds(finding="test", advice="literature", source="arXiv 2402.13228, 2410.08847")
    goal = "regularisation"
    needs_learning = True

    best: Points = 5
    """Number of best trials to judge. Our choice."""
    most: Factor = 1.5
    """Maximum acceptable ratio of the late cross-entropy of the preferred answers to its first value. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which noise alone raises a finding."""

    def check(self, study: Study) -> Iterator[Finding]:
        metrics = {s: study.signals[s] for s in _LOG_PROBABILITY_SIGNALS if study.has(s)}
        if not metrics:
            raise MissingData("no trial logged the log probability of preferred answers", needs="design")
        if study.spec.objective.metric in metrics.values():
            raise MissingData("the objective is the log probability of preferred answers, so the ranking shows it")
        trials = study.ranked()[: self.best]
        falls_by_signal = ([f for t in trials if (f := self._measure_fall(study, t, s)) is not None] for s in metrics)
        measured = next(filter(None, falls_by_signal), [])
        if not measured:
            raise MissingData(f"no good trial logged {' or '.join(metrics.values())} {MIN_LOG_PROBABILITIES} times below zero")
        significant = [f for f in measured if f.p_value <= self.false_alarms]
        if significant and significant[0] is measured[0]:
            yield self._build_finding(study, significant, measured)

    def _measure_fall(self, study: Study, trial: Trial, signal: Signal) -> _LogProbabilityFall | None:
        entropy = -study.curve(trial, signal).finite.values
        if len(entropy) < MIN_LOG_PROBABILITIES:
            return None
        late_level = mean_level(entropy[len(entropy) // 2 :])
        if signal == "valid_chosen_logp":
            start, p = float(entropy[0]), late_level.p_value_above(self.most * float(entropy[0]))
        else:
            # Each training step uses different answers, so the first value has a sampling error.
            first_values = entropy[: max(len(entropy) // 10, 3)]
            start, error = float(first_values.mean()), float(first_values.std(ddof=1) / np.sqrt(len(first_values)))
            p = late_level.p_value_above_other(MeanLevel(self.most * start, self.most * error, len(first_values) - 1.0))
        return _LogProbabilityFall(trial, study.signals[signal], -start, -late_level.mean, p) if start > 0 else None

    def _build_finding(self, study: Study, falls: list[_LogProbabilityFall], measured: list[_LogProbabilityFall]) -> Finding:
        first, metric, objective = falls[0], Name(falls[0].metric), study.spec.objective.metric
        caption, ratios = say("{metric} falls.", metric=metric), join_items(Number(f.ratio, 2) for f in measured)
        return self.finding(
            say(
                "The preferred answers become less likely in {trial}: their mean log probability, {metric}, goes from {before} to "
                "{after}. The study ranks trials by {objective}. The preferred answers also become less likely in {n} of {of}.",
                trial=Name(first.trial.name),
                metric=metric,
                before=Number(first.start),
                after=Number(first.late),
                objective=Name(objective),
                n=len(falls),
                of=Count(len(measured), "good trial"),
            ),
            action=say(_PREFERRED_ANSWERS_ADVICE, metric=metric),
            severity="note",
            # Both remedies worked in our small studies. If another model wrote the chosen answers, their fall can be harmless.
            confidence=0.8 * (1 - first.p_value),
            subject=first.metric,
            trials=[f.trial for f in falls],
            evidence=(
                curve_plot((objective, first.metric), caption, [f.trial for f in measured]),
                table(
                    ("late cross-entropy of preferred answers, as a multiple of the first", Number(first.ratio, 2), self.most),
                    ("ratios of late to first cross-entropy in the best trials", ratios),
                    ("p-value", Probability(first.p_value), self.false_alarms),
                ),
            ),
        )
