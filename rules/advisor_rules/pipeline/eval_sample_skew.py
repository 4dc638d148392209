"""Implements the rule `eval-sample-skew`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData, Severity
from advisor.model.message import Message, Name, Number, Objective, Percent, Probability, say
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats.heterogeneity import p_value_of_zero_mean
from advisor_rules.pipeline._eval_samples import CostPairs, read_cost_pairs

_LARGER_SAMPLE_ADVICE = (
    "Evaluate on a larger sample, drawn at random and in proportion to the classes, and compare the results again."
)


class EvalSampleSkew(Rule):
    """Evaluations on a sample of the validation set disagree with evaluations on the whole set.

    ## What it looks at
    The rule reads evaluations of the objective on a sample during training, and its value on the whole set (logged as
    NAME.full). The rule fires if the trial that is best on the sample is clearly not best on the whole set. The rule also fires
    if results on the sample are consistently better or worse than on the whole set, beyond the scatter of the differences. The
    disagreement is compared with the gain from tuning: the distance from the best trial to the worst quarter of the trials.
    With fewer than 3 trials, it is compared with the distance from the worst to the best evaluation of a trial.

    ## Why it matters
    The sample decides which trial is chosen and which checkpoint is kept. A misleading sample leads to wrong choices.

    ## What to do
    Draw a larger sample, at random and in proportion to the classes, and compare again with the whole set.

    ## How sure
    For a consistent shift of results on the sample, confidence is 1 minus the p-value of the differences (a t-test over trials,
    or over evaluations with fewer than 3 trials). If the trial that is best on the sample is clearly not best on the whole set,
    confidence is 0.9. In simulated studies of 3 to 100 trials, the rule never fired if the standard deviation due to sampling
    was a twentieth of the gain from tuning. The rule fired in up to 9 % of simulated studies if the standard deviation due to
    sampling was a tenth of the gain from tuning, and always if results on the sample were shifted by half of the gain.
    """

    playbook = "Choosing a sample for periodic evaluation"
    goal = "pipeline"
    explains = Relation(
        rules=("eval-size", "curve-step-variance"),
        shares="study",
        because="The evaluations use a misleading sample, and a new sample will change their noise.",
    )

    material: Share = 0.2
    """Minimum disagreement between the sample and the whole set, as a share of the gain from tuning. Our choice."""
    fewest: Count = 3
    """Minimum number of trials to compare their order on the sample and on the whole set, and minimum number of pairs for any
    finding. Our choice."""
    false_alarms: Share = 0.05
    """Maximum share of studies in which results on the sample seem shifted only by chance."""

    def check(self, study: Study) -> Iterator[Finding]:
        sample_pairs = read_cost_pairs(study)
        differences = _sample_differences(sample_pairs, self.fewest)
        if len(differences) < self.fewest:
            raise MissingData(
                f"{len(differences)} evaluations on the whole set are too few to compare with the sample; log at least "
                f"{self.fewest}",
                needs="design",
            )
        gain, shift, p = (
            _gain_from_tuning(sample_pairs, self.fewest),
            float(differences.mean()),
            p_value_of_zero_mean(differences),
        )
        chosen, best = sample_pairs[0], min(sample_pairs, key=lambda p: (float(p.whole_set_costs.min()), p.trial.index))
        severity: Severity = "note"
        if (
            len(sample_pairs) >= self.fewest
            and float(chosen.whole_set_costs.min() - best.whole_set_costs.min()) > self.material * gain
        ):
            message, severity, confidence = _wrong_choice_message(study, chosen, best), "warning", 0.9
        elif p <= self.false_alarms and abs(shift) > self.material * gain:
            message, confidence = _shift_message(study, shift, gain), 1 - p
        else:
            return
        yield self.finding(
            message,
            action=_LARGER_SAMPLE_ADVICE,
            severity=severity,
            confidence=confidence,
            subject=study.spec.objective.metric,
            trials=[pair.trial for pair in ([chosen, best] if severity == "warning" else sample_pairs)],
            evidence=table(
                ("trials with both", len(sample_pairs)),
                ("pairs of evaluations", sum(len(f.whole_set_costs) for f in sample_pairs)),
                ("sample minus whole set, mean", study.objective_value(shift)),
                ("p-value of the mean difference", Probability(p)),
                ("sample minus whole set, standard deviation", float(differences.std(ddof=1))),
                ("gain from tuning, on the whole set", gain),
                ("limit, as a share of this gain", Percent(self.material)),
            ),
            changes=(Advise(text=_LARGER_SAMPLE_ADVICE, new_scores=True),),
        )


def _wrong_choice_message(study: Study, chosen: CostPairs, best: CostPairs) -> Message:
    sampled, whole, other = (
        Objective(study.objective_value(float(costs.min())))
        for costs in (chosen.sample_costs, chosen.whole_set_costs, best.whole_set_costs)
    )
    return say(
        "On the sample, {chosen} has the best {metric}, {sampled}. On the whole set, {chosen} has {whole}, and {best} has {other}.",
        chosen=Name(chosen.trial.name),
        metric=Name(study.spec.objective.metric),
        sampled=sampled,
        whole=whole,
        best=Name(best.trial.name),
        other=other,
    )


def _shift_message(study: Study, shift: float, gain: float) -> Message:
    return say(
        "On the sample, {metric} is {shift} {side} than on the whole set. {comparison}",
        metric=Name(study.spec.objective.metric),
        shift=Number(abs(shift), 2),
        side="worse" if shift > 0 else "better",
        comparison=say("This difference is {share} of the gain from tuning.", share=Percent(abs(shift) / gain))
        if gain > 0
        else "On the whole set all trials are equal.",
    )


def _sample_differences(sample_pairs: Sequence[CostPairs], fewest: int) -> FloatArray:
    """Return the differences between the costs on the sample and on the whole set, averaged over each trial, because
    evaluations of one trial are not independent.

    With few trials, return the difference at each evaluation instead of averages.
    """
    if len(sample_pairs) >= fewest:
        return np.array([p.excess_on_sample.mean() for p in sample_pairs])
    return np.concatenate([p.excess_on_sample for p in sample_pairs])


def _gain_from_tuning(sample_pairs: Sequence[CostPairs], fewest: int) -> float:
    """Return the gain from tuning on the whole set or, with few trials, the gain from training."""
    if len(sample_pairs) >= fewest:
        whole = np.array([p.whole_set_costs.min() for p in sample_pairs])
        return float(np.quantile(whole, 0.75) - whole.min())
    return float(max(np.ptp(p.whole_set_costs) for p in sample_pairs))
