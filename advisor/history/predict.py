"""Predicts the effects of a report's advice on the next study. `advisor.history.judge` compares the predictions with the next
study after it has run.

Each prediction belongs to one rule and to one change in the next study. Its probability follows from the rule's statistical
test or interval, if any. `Rule.predicts` declares the outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.computed.curves import curve_tails, noise
from advisor.computed.space import failures, settings
from advisor.computed.space.inside import trials_in_space
from advisor.engine.rule import Expectation, Rule
from advisor.model.change import AddParameter, Change, FixParameter, RunPlan, SetField, SetRange, SetSchedule
from advisor.model.errors import AdvisorError
from advisor.model.finding import Finding, MissingData, Verdict
from advisor.model.prediction import BestBeyond, BestReaches, Expected, Prediction, Settled, ShareOfTrials, round_significant
from advisor.model.space import is_training_length
from advisor.model.spec import Parameter, StudySpec
from advisor.model.study import Study, Trial
from advisor.planning.base import initial_draft
from advisor.planning.designs.catalogue import STUDY_DESIGNS
from advisor.planning.sampling.halton import draw_trials
from advisor.stats import surface
from advisor.stats.ranks import choose_evenly_by_rank

PREDICTION_COVERAGE = 0.9
"""Probability that a predicted interval or bound holds; 0.9 is a convention."""
MAX_STATED_PROBABILITY = 0.99
"""Maximum probability that we state for or against a prediction, because models of noise do not justify higher probabilities."""
MAX_PREDICTIONS = 8
"""Maximum number of predictions in a study file, so that the file stays readable."""
MIN_TRIALS_FOR_BOUND = 5
"""Minimum number of trials to predict a bound on further results; with fewer, the bound would be the worst result."""

MAX_FORECAST_SETTINGS = 200
"""Maximum number of trials of the next study whose results are forecast. The time grows with its cube."""

_RELATIVE_ROUNDING_ERROR = 1e-9
_LINEAR_SHARE = 0.25
"""Share of the best settings whose costs are not compressed for the forecast. If half of the settings were not compressed,
settings near the chance level would hide differences between good settings."""

PredictedResult = tuple[Expected, float | None]
"""(Expected result, its probability or None.)"""


@dataclass(frozen=True)
class _PredictionBasis:
    study: Study
    finding: Finding
    next_spec: StudySpec
    trials_in_next_space: Sequence[Trial]
    """Ended trials whose settings lie in the next study's search space. Their training length, and their values of
    hyperparameters that the next study newly fixes, may differ from the next study."""


def add_predictions(
    study: Study, verdicts: Sequence[Verdict], specs: Sequence[StudySpec], rules: Iterable[Rule] = ()
) -> tuple[StudySpec, ...]:
    """Return the files of the next studies. Each file contains predictions about the effects of the advice that its study
    follows. Probes (short diagnostic runs) and repeats get no predictions."""
    kind_by_rule = {rule.rule_id(): rule.predicts for rule in rules}
    findings = [f for v in verdicts for f in v.findings]
    new_specs, old_spec = [], initial_draft(study)
    for spec in specs:
        if spec.probe is not None:
            new_specs.append(spec)
            continue
        # Newly fixed nuisance hyperparameters keep their old ranges here, because few trials have exactly the fixed values.
        space = {n: p for n, p in spec.parameters.items() if not is_training_length(n)}
        space |= {n: p for n, p in study.searched.items() if p.role == "nuisance" and n in space and space[n].role == "fixed"}
        trials_inside = trials_in_space(spec.model_copy(update={"parameters": space}), _ended_trials(study))
        predictions = []
        for finding in findings:
            if any(_is_followed(study, c, old_spec, spec) for c in finding.changes):
                basis = _PredictionBasis(study, finding, spec, trials_inside)
                predicted = _PREDICTORS[kind_by_rule.get(finding.rule, "settled")](basis)
                if predicted is not None:
                    predictions.append(_rounded_prediction(finding, *predicted))
        # Several findings of one rule may make the same prediction, for example about several unimportant hyperparameters.
        distinct = {(p.rule, p.expects): p for p in reversed(predictions)}
        update = {"predictions": tuple(reversed(distinct.values()))[:MAX_PREDICTIONS]}
        new_specs.append(spec.model_copy(update=update))
        old_spec = spec
    return tuple(new_specs)


def _is_followed(study: Study, change: Change, old_spec: StudySpec, new_spec: StudySpec) -> bool:
    study_or_changes = STUDY_DESIGNS[change.plan](change, study, old_spec) if isinstance(change, RunPlan) else (change,)
    if isinstance(study_or_changes, StudySpec):
        return study_or_changes.goal == new_spec.goal
    return any(is_change_made(c, old_spec, new_spec) for c in study_or_changes)


def _rounded_prediction(finding: Finding, expected: Expected, probability: float | None) -> Prediction:
    digits = dict.fromkeys(("value", "than", "end"), 6)
    update = {name: round_significant(v, digits.get(name, 3)) for name, v in expected if isinstance(v, float)}
    if probability is not None:
        probability = round(min(max(probability, 1 - MAX_STATED_PROBABILITY), MAX_STATED_PROBABILITY), 3)
    expected = expected.model_copy(update=update)
    return Prediction(rule=finding.rule, subject=finding.subject, expects=expected, probability=probability)


def is_change_made(change: Change, before: StudySpec, after: StudySpec) -> bool:
    """Return True if the later study file contains the change and the earlier file does not. Partial changes count."""
    match change:
        case SetRange():
            old, new = before.parameters.get(change.parameter), after.parameters.get(change.parameter)
            return new is not None and new.numeric and _moves_range(change, old, new)
        case FixParameter():
            old, new = before.parameters.get(change.parameter), after.parameters.get(change.parameter)
            return new is not None and new.value == change.value and (old is None or old.value != change.value)
        case AddParameter():
            return change.name in after.searched and change.name not in before.searched
        case SetField():
            return bool(change.value == getattr(after, change.field) != getattr(before, change.field))
        case SetSchedule():
            old_schedule, new_schedule = before.schedule or {}, after.schedule or {}
            return any(new_schedule.get(k) == v and old_schedule.get(k) != v for k, v in change.schedule.items())
    return False


def _moves_range(change: SetRange, old: Parameter | None, new: Parameter) -> bool:
    """Return True if an end moves in the requested direction, or the scale changes as requested. The new end may differ from
    the requested end, because another finding may move the end further and the training script may support only some values."""
    if old is None or old.low is None or old.high is None or new.low is None or new.high is None:
        return (new.low, new.high, new.scale) == (change.low, change.high, change.scale)
    end_values = ((old.low, new.low, change.low), (old.high, new.high, change.high))
    end_moves = any((new_end - old_end) * (wanted_end - old_end) > 0 for old_end, new_end, wanted_end in end_values)
    return end_moves or (new.scale == change.scale != old.scale)


def _predict_best_beyond(case: _PredictionBasis) -> PredictedResult | None:
    """Predict that the best trial beyond the old end of a range will be better than the best trial inside the old range.

    The stated probability is at most the confidence of the finding about this end of the range. If no possible result is better
    by more than noise, there is no prediction."""
    study, finding, new_spec = case.study, case.finding, case.next_spec
    name, old = finding.subject, study.spec.parameters.get(finding.subject or "")
    new = new_spec.parameters.get(name or "")
    if name is None or finding.side is None or old is None or new is None or old.low is None or old.high is None:
        return None
    end = old.low if finding.side == "low" else old.high
    if not new.numeric or not new.contains(end) or any(math.isclose(end, e or 0, rel_tol=0.01) for e in (new.low, new.high)):
        return None
    costs = study.costs[study.feasible]
    is_perfect = not study.minimize and bool(len(costs)) and costs.min() <= curve_tails.lowest_possible_cost(study, costs)
    best_value = _best_objective_value(study) if _are_results_comparable(study.spec, new_spec) and not is_perfect else None
    expects = BestBeyond(parameter=name, side=finding.side, end=end, than=best_value, noise=_noise_of_result(study))
    chance = _chance_of_best_beyond(study, new_spec, expects)
    if chance == 0:
        return None
    return expects, None if chance is None else min(chance, finding.confidence)


def _chance_of_best_beyond(study: Study, after: StudySpec, expectation: BestBeyond) -> float | None:
    """Return the probability that the prediction comes true in the trials of the next study, without earlier trials, or None if
    unknown.

    A Gaussian process over all hyperparameters forecasts the results of the settings that the sampler seed of the next study
    determines."""
    tried = settings.read_settings(study)
    has_result = ~tried.failed
    if not has_result.any():
        return None
    try:
        points = list(draw_trials(after, min(after.trials or len(tried), MAX_FORECAST_SETTINGS)))
    except AdvisorError:  # an adaptive sampler chooses settings by results, so the settings are not known yet
        return None
    names = [*tried.numeric, *tried.choices]
    new = [study.spec.parameters[n].to_positions([p.get(n, "") for p in points]) for n in names]
    chosen = np.flatnonzero(has_result)[choose_evenly_by_rank(tried.costs[has_result])]
    columns = [[u[chosen] for u in axes.values()] for axes in (tried.numeric, tried.choices)]
    value_to_beat = [] if expectation.than is None else [expectation.than if study.minimize else -expectation.than]
    costs = np.append(tried.costs[chosen], value_to_beat)
    values = surface.compress_costs(costs, _LINEAR_SHARE)[: len(chosen)]
    results = surface.draw_results_at_points(columns[0], columns[1], values, new)
    if not len(results) or expectation.parameter not in names:
        return None
    positions = new[names.index(expectation.parameter)]
    is_beyond = positions > 1 if expectation.side == "high" else positions < 0
    if not is_beyond.any():
        return None
    results = np.maximum(surface.expand_costs(results, costs, _LINEAR_SHARE), curve_tails.lowest_possible_cost(study, costs))
    best_cost_inside = np.min(results, axis=1, where=~is_beyond, initial=min(value_to_beat, default=math.inf))
    return float(np.mean(best_cost_inside - results[:, is_beyond].min(1) > expectation.min_lead))


def _predict_longer_training(case: _PredictionBasis) -> PredictedResult | None:
    """Predict a bound on the best objective value after longer training: the pessimistic end of the forecast's 90 % interval.

    If the bound is worse than the best value so far, predict the best value so far instead, without a probability."""
    study, finding, new_spec = case.study, case.finding, case.next_spec
    try:
        endings = curve_tails.best_curve_endings(study, curve_tails.NUMBER_OF_BEST_TRIALS, curve_tails.MAX_DISTANCE_FROM_BEST)
    except MissingData:
        return None
    improving_endings = [e for e in endings if e.trial.id in finding.trials] or endings
    ending = improving_endings[0]
    length_ratio = (new_spec.max_train_steps or 0) / curve_tails.median_planned_steps(study, improving_endings)
    share = ending.end.share_of_forecast_gain(length_ratio)
    forecast = curve_tails.forecast_longer_training(study, ending, share, PREDICTION_COVERAGE)
    probability = (1 + PREDICTION_COVERAGE) / 2
    costs = study.cost_curve(study.ranked()[0]).finite.values
    best, sign = float(costs.min()), 1.0 if study.minimize else -1.0
    pessimistic_cost = sign * (forecast.high if study.minimize else forecast.low)
    pessimistic_gain = sign * forecast.current_best - pessimistic_cost
    bound = max(_best_cost_reached(case, probability) - pessimistic_gain, curve_tails.lowest_possible_cost(study, costs))
    middle = sign * forecast.point_forecast
    value, expected, than = (study.objective_value(cost) for cost in (min(bound, best), min(middle, best), best))
    return BestReaches(value=value, expected=expected, than=than), probability if bound <= best else None


def _predict_best_not_worse(case: _PredictionBasis) -> PredictedResult | None:
    study = case.study
    best, sd = _best_objective_value(study), _noise_of_result(study)
    if best is None:
        return None
    max_difference = float(stats.norm.ppf(PREDICTION_COVERAGE)) * math.sqrt(2) * sd
    cost = max(_best_cost_reached(case, PREDICTION_COVERAGE), (best if study.minimize else -best) + max_difference)
    return BestReaches(value=study.objective_value(cost), expected=best, than=best), PREDICTION_COVERAGE


def _best_cost_reached(case: _PredictionBasis, probability: float) -> float:
    """Return the cost that the best trial of the next study reaches with the given probability if its trials are distributed
    like existing trials.

    If at least `MIN_TRIALS_FOR_BOUND` existing trials lie in the search space of the next study, only these trials count."""
    study, ended_trials = case.study, _ended_trials(case.study)
    trials = case.trials_in_next_space if len(case.trials_in_next_space) >= MIN_TRIALS_FOR_BOUND else ended_trials
    costs = np.sort([study.costs[t.index] if study.feasible[t.index] else np.inf for t in trials])
    p_missed = (1 - np.arange(1, len(costs) + 1) / len(costs)) ** (case.next_spec.trials or len(ended_trials))
    cost = float(costs[int(np.argmax(p_missed <= 1 - probability))])
    return cost if math.isfinite(cost) else float(costs[np.isfinite(costs)].max())


def _predict_fewer_failures(case: _PredictionBasis) -> PredictedResult | None:
    study, new_spec = case.study, case.next_spec
    if not new_spec.searches_within(study.spec):
        return None
    has_failed = failures.failure_masks(study).has_failed
    ended_trials = _ended_trials(study)
    was = sum(bool(has_failed[t.index]) for t in ended_trials) / max(len(ended_trials), 1)
    trials_inside = case.trials_in_next_space
    failed_count = sum(bool(has_failed[t.index]) for t in trials_inside)
    new_count = new_spec.trials or len(ended_trials)
    bound, probability = _upper_bound_of_share(failed_count, len(trials_inside), new_count, was)
    return ShareOfTrials(of="failed", at_most=bound, was=was), probability


def _predict_share_of_better(case: _PredictionBasis) -> PredictedResult | None:
    study, new_spec = case.study, case.next_spec
    best_first = study.ranked()
    if not best_first or not _are_results_comparable(study.spec, new_spec) or not new_spec.searches_within(study.spec):
        return None
    median = float(np.median(study.costs[[t.index for t in best_first]]))
    ended_trials = _ended_trials(study)
    better_indices = {t.index for t in best_first if study.costs[t.index] <= median}
    trials_inside = case.trials_in_next_space
    was = len(better_indices) / len(ended_trials)
    worse_count = sum(t.index not in better_indices for t in trials_inside)
    bound, probability = _upper_bound_of_share(worse_count, len(trials_inside), new_spec.trials or len(ended_trials), 1 - was)
    value = study.objective_value(median)
    return ShareOfTrials(of="better", value=value, at_least=1 - bound, was=was), probability


def _predict_problem_settled(case: _PredictionBasis) -> PredictedResult | None:
    if case.finding.subject in case.study.searched and case.finding.subject not in case.next_spec.searched:
        return None
    return Settled(side=case.finding.side), None


_PREDICTORS: Mapping[Expectation, Callable[[_PredictionBasis], PredictedResult | None]] = {
    "settled": _predict_problem_settled,
    "best-beyond": _predict_best_beyond,
    "longer-reaches": _predict_longer_training,
    "no-worse": _predict_best_not_worse,
    "fewer-failures": _predict_fewer_failures,
    "denser": _predict_share_of_better,
}


def _ended_trials(study: Study) -> list[Trial]:
    return [t for t in study.trials if study.ended[t.index]]


def _best_objective_value(study: Study) -> float | None:
    best_first = study.ranked()
    return study.objective_value(float(study.costs[best_first[0].index])) if best_first else None


def _noise_of_result(study: Study) -> float:
    """Return the standard deviation of a result between seeds if known, else between evaluations at successive steps."""
    sd = noise.noise_between_seeds(study)[0] or noise.noise_between_evaluations(study)
    return sd if sd > _RELATIVE_ROUNDING_ERROR * abs(_best_objective_value(study) or 0.0) else 0.0


def _are_results_comparable(old_spec: StudySpec, new_spec: StudySpec) -> bool:
    return (old_spec.max_train_steps, old_spec.schedule) == (new_spec.max_train_steps, new_spec.schedule)


def _upper_bound_of_share(count: int, total: int, new_trials: int, old_share: float) -> tuple[float, float]:
    """Return (upper bound, its probability) for the share of `new_trials` further trials that have a property. So far, `count`
    of `total` trials have this property.

    The share among the new trials exceeds the bound with a probability of at most 10 %. The bound must lie below `old_share`
    (beta-binomial distribution, Jeffreys prior)."""
    probabilities = stats.betabinom.cdf(np.arange(new_trials + 1), new_trials, count + 0.5, total - count + 0.5)
    bound = max(min(int(np.searchsorted(probabilities, PREDICTION_COVERAGE)), math.ceil(old_share * new_trials) - 1), 0)
    return bound / new_trials, float(probabilities[bound])
