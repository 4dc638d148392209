from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.contract import FULL_SET_SUFFIX
from advisor.engine.rule import Count, Relation, Rule, Share
from advisor.model.change import Advise
from advisor.model.evidence import table
from advisor.model.finding import Finding, MissingData
from advisor.model.message import Message, Name, Number, Objective, Percent, Probability, say
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.stats.heterogeneity import p_value_of_zero_mean

_LARGER_SAMPLE_ADVICE = (
    "Evaluate on a larger sample, drawn at random and in proportion to the classes, and compare the results again."
)


@dataclass(frozen=True, slots=True)
class _CostPairs:
    """Costs of one trial on the sample and on the whole validation set, paired by evaluation, shape (n,) each."""

    trial: Trial
    sample: FloatArray
    whole: FloatArray


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
        pairs = _read_cost_pairs(study)
        has_many = len(pairs) >= self.fewest
        # Evaluations of one trial are not independent, so their differences are averaged unless there are only a few trials.
        trial_differences = [p.sample - p.whole for p in pairs]
        differences = np.array([e.mean() for e in trial_differences]) if has_many else np.concatenate(trial_differences)
        if len(differences) < self.fewest:
            raise MissingData(
                f"{len(differences)} evaluations on the whole set are too few to compare with the sample; log at least "
                f"{self.fewest}",
                needs="design",
            )
        gain, shift = _gain_from_tuning(pairs, has_many=has_many), float(differences.mean())
        p = p_value_of_zero_mean(differences)
        chosen, best = pairs[0], min(pairs, key=lambda p: (float(p.whole.min()), p.trial.index))
        is_wrong_choice = has_many and float(chosen.whole.min() - best.whole.min()) > self.material * gain
        if not is_wrong_choice and not (p <= self.false_alarms and abs(shift) > self.material * gain):
            return
        yield self.finding(
            _wrong_choice_message(study, chosen, best) if is_wrong_choice else _shift_message(study, shift, gain),
            action=_LARGER_SAMPLE_ADVICE,
            severity="warning" if is_wrong_choice else "note",
            confidence=0.9 if is_wrong_choice else 1 - p,
            subject=study.spec.objective.metric,
            trials=[pair.trial for pair in ([chosen, best] if is_wrong_choice else pairs)],
            evidence=table(
                ("trials evaluated on both sets", len(pairs)),
                ("pairs of evaluations", sum(len(pair.whole) for pair in pairs)),
                ("mean of sample minus whole set", study.objective_value(shift)),
                ("p-value of the mean difference", Probability(p)),
                ("standard deviation of sample minus whole set", float(differences.std(ddof=1))),
                ("gain from tuning, on the whole set", gain),
                ("limit, as a share of this gain", Percent(self.material)),
            ),
            changes=(Advise(text=_LARGER_SAMPLE_ADVICE, new_scores=True),),
        )


def _wrong_choice_message(study: Study, chosen: _CostPairs, best: _CostPairs) -> Message:
    text = (
        "On the sample, {chosen} has the best {metric}, {sampled}. "
        "On the whole set, {chosen} has {whole}, and {best} has {other}."
    )
    costs = (chosen.sample, chosen.whole, best.whole)
    sampled, whole, other = (Objective(study.objective_value(float(c.min()))) for c in costs)
    names = {"chosen": Name(chosen.trial.name), "best": Name(best.trial.name), "metric": Name(study.spec.objective.metric)}
    return say(text, sampled=sampled, whole=whole, other=other, **names)


def _shift_message(study: Study, shift: float, gain: float) -> Message:
    share_text: Message | str = "On the whole set, all trials are equally good."
    if gain > 0:
        share_text = say("This difference is {share} of the gain from tuning.", share=Percent(abs(shift) / gain))
    text, side = "On the sample, {metric} is {shift} {side} than on the whole set. {share}", "worse" if shift > 0 else "better"
    return say(text, metric=Name(study.spec.objective.metric), shift=Number(abs(shift), 2), side=side, share=share_text)


def _read_cost_pairs(study: Study) -> list[_CostPairs]:
    """Return the pairs of costs of the feasible trials, sorted by the best cost on the sample, lowest first. Each evaluation on
    the whole set is paired with the last evaluation on the sample at or before its step."""
    metric = study.spec.objective.metric.removesuffix(FULL_SET_SUFFIX)
    full_metric = metric + FULL_SET_SUFFIX
    if metric not in study.metrics or full_metric not in study.metrics:
        raise MissingData(
            f"{full_metric} is missing; if {metric} is computed on a sample of the validation set, log its value on the whole "
            "set under that name, once or at some of the steps",
            needs="design",
        )
    sign = 1.0 if study.minimize else -1.0
    pairs = []
    for trial in study.ranked():
        sampled, whole = study.metric(trial, metric).finite, study.metric(trial, full_metric).finite
        indices = np.searchsorted(sampled.steps, whole.steps, side="right") - 1
        if (indices >= 0).any():
            pairs.append(_CostPairs(trial, sign * sampled.values[indices[indices >= 0]], sign * whole.values[indices >= 0]))
    if not pairs:
        raise MissingData(f"no trial has both {metric} and {full_metric}")
    return sorted(pairs, key=lambda p: (float(p.sample.min()), p.trial.index))


def _gain_from_tuning(pairs: Sequence[_CostPairs], *, has_many: bool) -> float:
    """Return how much tuning improved the results on the whole validation set or, with few trials, how much training did."""
    if not has_many:
        return float(max(np.ptp(p.whole) for p in pairs))
    best_costs = np.array([p.whole.min() for p in pairs])
    return float(np.quantile(best_costs, 0.75) - best_costs.min())
