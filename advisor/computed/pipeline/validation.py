"""Computes the standard error of the objective from the number of validation examples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from advisor import contract
from advisor.computed.decision import repeats
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, as_number, words_of_name
from advisor.model.study import Study, Trial
from advisor.stats.estimates import standard_error_of_share

ERROR_CORRELATION = 0.5
"""Assumed correlation between the errors of two trials on the same validation examples: published disagreement rates between
two runs of one architecture imply about one half."""
MAX_VALIDATION_SET_GROWTH = 100
"""Maximum factor by which a validation set can grow. Our choice."""
_MAX_SHARE_VALUE = 1 + 1e-6
"""Maximum value of a metric that is a share; larger values are percentages. 32-bit floats may round 1 up."""
_ACCURACY_WORDS = {"accuracy", "accuracies", "acc", "top1", "top5"}
_ERROR_RATE_WORDS = {"error", "err"}
_OTHER_METRIC_WORDS = set(
    "balanced macro weighted class mean squared square absolute relative rms root median word character char phone token pixel std "
    "reconstruction prediction approximation".split()
)
"""Words in names of metrics that are no share of right or wrong examples, but averages over means, sizes or parts of examples."""


def percentage_factor(study: Study) -> float:
    """Return 100 if objective values are percentages, as the largest one exceeds 1, else 1."""
    values = study.metrics[study.spec.objective.metric].values
    return 100.0 if np.max(np.abs(values), where=np.isfinite(values), initial=0.0) > _MAX_SHARE_VALUE else 1.0


def standard_errors(study: Study, trials: Sequence[Trial]) -> FloatArray:
    """Return the standard error of each trial's best objective value, shape (k,), from the size of its validation set.

    For a share of right examples, the number of examples determines the error; other metrics need the logged standard deviation
    over examples. Raises MissingData with the name of the value to log.
    """
    metric = study.spec.objective.metric
    validation_sizes = np.array([t.fact("n_valid") for t in trials])
    std_metric, words = metric + contract.STD_SUFFIX, set(words_of_name(metric))
    trl_metric = metric + "_std"  # TRL's name for rewards
    if study.kind == "reinforcement-learning" and std_metric not in study.metrics and trl_metric in study.metrics:
        std_metric = trl_metric
    if not (validation_sizes > 0).all():
        is_share = words & (_ACCURACY_WORDS | _ERROR_RATE_WORDS) and not words & _OTHER_METRIC_WORDS
        count_suffices = std_metric in study.metrics or is_share
        advice = "" if count_suffices else f"; also log the standard deviation of {metric} over the examples, as {std_metric}"
        raise MissingData(
            f"the number of validation examples is unknown; pass the validation loader to the hook, or log n_valid{advice}",
            needs="facts" if count_suffices else "other",
        )
    if std_metric in study.metrics:
        if std_metric == trl_metric:
            validation_sizes = validation_sizes * [_examples_per_prompt(t) for t in trials]
        return np.asarray(_deviations_over_examples(study, trials, std_metric) / np.sqrt(validation_sizes), dtype=np.float64)
    shares = np.array([study.objective_value(float(study.costs[t.index])) for t in trials])
    unit_factor = percentage_factor(study)
    if not _are_example_shares(study, metric, shares / unit_factor, validation_sizes):
        raise MissingData(
            f"{metric} is no share of right or wrong examples, so its error needs the standard deviation over the validation "
            f"examples; log it as {std_metric}"
        )
    return unit_factor * standard_error_of_share(shares / unit_factor, validation_sizes)


def _examples_per_prompt(trial: Trial) -> float:
    """Return the effective number of validation examples per prompt of an evaluation by TRL; 1 if the number of completions is
    unknown.

    TRL logs the standard deviation between the n completions of a prompt, averaged over the prompts. The mean of standard
    deviations is below their root mean square: for 0-1 rewards, by the factor (n + 1) / (n - 1) in the squares."""
    completion_counts = (as_number(trial.params.get(name)) for name in ("num_generations_eval", "num_generations"))
    n = next((n for n in completion_counts if n >= 1), 1.0)
    return (1 - ERROR_CORRELATION) * n * (n - 1) / (n + 1) if n > 1 else 1.0


def _deviations_over_examples(study: Study, trials: Sequence[Trial], metric: str) -> FloatArray:
    """Return each trial's standard deviation over the examples, shape (k,): the last logged value up to the trial's best step."""
    standard_deviations = np.full(len(trials), np.nan)
    for i, trial in enumerate(trials):
        costs, logged = study.cost_curve(trial).finite, study.metrics[metric].curve(trial.index).finite
        at = np.searchsorted(logged.steps, costs.steps[np.argmin(costs.values)], side="right") - 1
        if at >= 0:
            standard_deviations[i] = logged.values[at]
    if not np.isfinite(standard_deviations).all():
        raise MissingData(f"not all of the best trials logged {metric} with their best evaluation")
    return standard_deviations


def _are_example_shares(study: Study, metric: str, shares: FloatArray, sizes: FloatArray) -> bool:
    """Return True if the metric is a share of the examples. Accuracies are recognised by name; an error rate times the number
    of examples must also be a whole number."""
    metric_words = set(words_of_name(metric))
    if metric_words & _OTHER_METRIC_WORDS or shares.min() < 0 or shares.max() > 1:
        return False
    if metric_words & _ACCURACY_WORDS:
        return True
    example_counts = shares * sizes
    # Values may be rounded to four digits or stored as 32-bit floats, so allow a small error.
    are_whole_numbers = bool((np.abs(example_counts - np.round(example_counts)) <= 1e-3 * example_counts + 0.01).all())
    return bool(metric_words & _ERROR_RATE_WORDS) and (are_whole_numbers or any("classes" in t.facts for t in study.trials))


def validation_class_counts(trial: Trial) -> list[int]:
    """Return the logged number of validation examples per class; empty if it was not logged."""
    examples_per_class = trial.json_fact("valid_class_counts", list)
    return examples_per_class if all(isinstance(n, int) for n in examples_per_class) else []


_BOUNDED_METRIC_WORDS = _ACCURACY_WORDS | {"auc", "auroc", "f1", "dice", "iou"}
"""Words in names of metrics whose maximum is 1, or 100 for percentages."""


def distance_to_perfect_score(study: Study) -> float:
    """Return the distance of the best result from a perfect score; inf if the perfect score is unknown."""
    best_trial, words = study.ranked()[:1], set(words_of_name(study.spec.objective.metric))
    if best_trial and study.minimize and study.kind == "language-model" and "loss" in words:
        return max(float(study.costs[best_trial[0].index]), 0.0)  # this cost is a cross-entropy, whose minimum is 0
    metric_words_with_bound = words & (_ERROR_RATE_WORDS - _OTHER_METRIC_WORDS if study.minimize else _BOUNDED_METRIC_WORDS)
    if not best_trial or not metric_words_with_bound:
        return math.inf
    cost, unit = float(study.costs[best_trial[0].index]), percentage_factor(study)
    distance = cost if study.minimize else unit + cost
    return distance if 0 <= distance <= unit else math.inf


MIN_PERFECT_SETTINGS = 3
"""Minimum number of settings with a perfect score at which the evaluation no longer distinguishes settings."""


def perfect_trials(study: Study) -> list[Trial]:
    """Return the best trial of each setting with a perfect score; empty for fewer than `MIN_PERFECT_SETTINGS`."""
    best_trial = study.ranked()[:1]
    perfect_cost = 0.0 if study.minimize else -percentage_factor(study)
    if not best_trial or study.costs[best_trial[0].index] != perfect_cost:
        return []
    best_per_setting = repeats.first_trial_per_setting(t for t in study.ranked() if study.costs[t.index] == perfect_cost)
    return best_per_setting if len(best_per_setting) >= MIN_PERFECT_SETTINGS else []
