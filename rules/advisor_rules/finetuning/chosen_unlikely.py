"""Implements the rule `chosen-unlikely`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.engine.rule import Count as Points, Factor, Grounds, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import curve_plot, table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Count, Name, Number, Probability, joined, limited, say
from advisor.model.study import Signal, Study, Trial
from advisor.stats.blocks import MeanLevel, mean_level

_SIGNALS: tuple[Signal, ...] = ("valid_chosen_logp", "train_chosen_logp")
"""Evaluations come first, because all evaluations use the same answers."""
MIN_POINTS = 6
"""Minimum number of values to tell a fall from noise."""
_ADVICE = (
    "Lower the learning rate, or add the loss of the preferred answers (`sft` in TRL's loss_type), and compare trials by {metric} "
    "as well."
)
_CONFIDENCE = 0.8
"""Confidence before noise is considered. Both remedies prevented the fall of the best trials in our small studies, but the fall
can be harmless if the answers come from a different model.
"""


@dataclass(frozen=True, slots=True)
class _LogProbabilityFall:
    trial: Trial
    metric: str
    before: float
    """Mean log probability of the preferred answers at the start."""
    after: float
    """Mean log probability of the preferred answers over the second half of the training."""
    p: float
    """p-value of the hypothesis that the late cross-entropy does not exceed the limit."""

    @property
    def ratio(self) -> float:
        """Ratio of the cross-entropy of the preferred answers to its first value. The ratio does not depend on the length of
        the answers."""
        return self.after / self.before


class ChosenUnlikely(Rule):
    """Preference training makes the preferred answers unlikely, which the share of correctly ordered pairs does not show.

    ## What it looks at
    The rule reads the mean log probability of the preferred answers (TRL's `logps/chosen`), from evaluations if they log it
    at least six times, otherwise from training.
    The rule compares the second half of each trial with its own first evaluation, or with the first tenth of a training curve.
    The rule fires if the best trial's late log probability is more than one and a half times as far below zero as its first,
    beyond noise. This ratio of cross-entropies does not depend on the length of the answers.

    ## Why it matters
    DPO rewards the distance between the two answers of a pair. The model can increase this distance by making both answers
    unlikely, the rejected one faster. Accuracy and margin then keep rising, while the model moves probability to answers that
    are in no pair.

    ## What to do
    Watch the log probability of preferred answers beside the accuracy, and generate some answers. Lower the learning rate,
    train for fewer steps, raise beta, or add the cross-entropy loss of the preferred answers.

    ## How sure
    Pal et al. 2024 (arXiv:2402.13228) and Razin et al. 2024 (arXiv:2410.08847) describe this fall and its harm; Pang et al.
    2024 (arXiv:2404.19733) find that adding the loss of the preferred answers prevents it. A small fall of this log probability
    is usual and harmless. We chose the limit of one and a half. The p-value comes from a t-test over means of five blocks,
    which are compared with one and a half times the first value. For evaluations, the first value counts as exact, because they
    see the same answers each time; for training values, its error is taken into account (Welch's test). On tiny models that
    TRL's DPOTrainer trained, whose preferred answers are the right ones (`finetuning.py --by trl`, seeds 40 to 49, on which it
    was not developed), the rule fired in 20 of 20 studies with far too high rates or with a high rate and a small beta. In the
    best trials of the first four seeds, the log probability went from -1 to -2.6 or less (median -15). The rule fired in none
    of 30 studies of usual rates, of a large beta, and of the same high rates with the loss of the preferred answers. So a lower
    rate and this loss both prevented the fall. At intermediate rates, whose best trial recovers in part, few studies were seen.
    Confidence is 0.8 times one minus the p-value: larger models, and answers that come from another model, were not measured.
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
        metrics = {s: study.signals[s] for s in _SIGNALS if study.has(s)}
        if not metrics:
            raise MissingData("no trial logged the log probability of preferred answers", needs="design")
        if study.spec.objective.metric in metrics.values():
            raise MissingData("the objective is the log probability of preferred answers, so the ranking shows it")
        trials = study.ranked()[: self.best]
        by_signal = ([f for t in trials if (f := _fall(study, t, s, self.most)) is not None] for s in metrics)
        found = next(filter(None, by_signal), [])
        if not found:
            raise MissingData(f"no good trial logged {' or '.join(metrics.values())} {MIN_POINTS} times below zero")
        falls = [f for f in found if f.p <= self.false_alarms]
        if falls and falls[0] is found[0]:
            yield self._finding(study, falls, found)

    def _finding(
        self, study: Study, falls: Sequence[_LogProbabilityFall], found: Sequence[_LogProbabilityFall]
    ) -> Finding:
        first, metric, objective = falls[0], falls[0].metric, study.spec.objective.metric
        action = say(_ADVICE, metric=Name(metric))
        return self.finding(
            say(
                "The preferred answers become less likely in {trial}: their mean log probability, {metric}, goes from {before} to "
                "{after}. The study ranks trials by {objective}. The preferred answers also become less likely in {n} of {of}.",
                trial=Name(first.trial.name),
                metric=Name(metric),
                before=Number(first.before),
                after=Number(first.after),
                objective=Name(objective),
                n=len(falls),
                of=Count(len(found), "good trial"),
            ),
            action=action,
            severity="note",
            confidence=_CONFIDENCE * (1 - first.p),
            subject=metric,
            trials=[f.trial for f in falls],
            evidence=(
                curve_plot((objective, metric), say("{metric} falls.", metric=Name(metric)), [f.trial for f in found]),
                table(
                    (
                        "late cross-entropy as a multiple of the first",
                        limited(Number(first.ratio, 2), Number(self.most)),
                    ),
                    (
                        "ratios of late to first cross-entropy in the best trials",
                        joined(Number(f.ratio, 2) for f in found),
                    ),
                    ("p-value", limited(Probability(first.p), self.false_alarms)),
                ),
            ),
            changes=(Advise(text=str(action)),),
        )


def _fall(study: Study, trial: Trial, signal: Signal, most: float) -> _LogProbabilityFall | None:
    """Return the change of the log probability in a trial; None for too few values, or for values that are not below zero."""
    entropy = -study.curve(trial, signal).finite.values
    if len(entropy) < MIN_POINTS:
        return None
    # Each training step sees other answers, so the first value has an error.
    late = mean_level(entropy[len(entropy) // 2 :])
    if signal == "valid_chosen_logp":
        start, p = float(entropy[0]), late.p_above(most * float(entropy[0]))
    else:
        part = entropy[: max(len(entropy) // 10, 3)]
        start, error = float(part.mean()), float(part.std(ddof=1) / np.sqrt(len(part)))
        p = late.p_value_above_other(MeanLevel(most * start, most * error, len(part) - 1.0))
    return _LogProbabilityFall(trial, study.signals[signal], -start, -late.mean, p) if start > 0 else None
