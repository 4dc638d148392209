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
from advisor.stats.ratios import error_of_share

ERROR_CORRELATION = 0.5
"""Assumed correlation between the errors of two trials on the same validation examples. Published disagreement rates between
two training runs of one architecture imply a correlation of about one half."""
MAX_VALIDATION_SET_GROWTH = 100
"""Maximum factor by which a validation set can realistically grow. Our choice."""
_MAX_SHARE_VALUE = 1 + 1e-6
"""Maximum value of a metric that is a share; larger values are percentages. The limit exceeds 1, because 32-bit floats may
round 1 up slightly."""
_ACCURACY_WORDS = {"accuracy", "accuracies", "acc", "top1", "top5"}
_ERROR_RATE_WORDS = {"error", "err"}
_OTHER_METRIC_WORDS = set(
    "balanced macro weighted class mean squared square absolute relative rms root median word character char phone token pixel std "
    "reconstruction prediction approximation".split()
)
"""Words that show that a metric is not a share of right or wrong examples. Metrics with such words in their names average over
means, over sizes, or over parts of examples."""


def percentage_factor(study: Study) -> float:
    """Return 100 if the objective is a percentage, else 1.

    The largest value at any step decides, because a percentage may be below 1 at its best.
    """
    values = study.metrics[study.spec.objective.metric].values
    return 100.0 if float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0)) > _MAX_SHARE_VALUE else 1.0


def standard_errors(study: Study, trials: Sequence[Trial]) -> FloatArray:
    """Return the standard error of each trial's best objective value, shape (k,), from the size of its validation set.

    The error of a share of right examples follows from the number of examples; other errors follow from the logged standard
    deviation. Raises MissingData with the name of the value to log, if a trial did not log it.
    """
    metric = study.spec.objective.metric
    sizes = np.array([t.fact("n_valid") for t in trials])
    std_metric, words = _std_metric_name(study), set(words_of_name(metric))
    if not (sizes > 0).all():
        count_suffices = std_metric in study.metrics or bool(
            words & (_ACCURACY_WORDS | _ERROR_RATE_WORDS) and not words & _OTHER_METRIC_WORDS
        )
        std_advice = (
            "" if count_suffices else f"; also log the standard deviation of {metric} over the examples, as {std_metric}"
        )
        raise MissingData(
            f"the number of validation examples is unknown; pass the validation loader to the hook, or log n_valid{std_advice}",
            needs="facts" if count_suffices else "other",
        )
    if std_metric in study.metrics:
        if std_metric != metric + contract.STD_SUFFIX:
            sizes = sizes * [_examples_per_prompt(t) for t in trials]
        return np.asarray(_deviations_over_examples(study, trials, std_metric) / np.sqrt(sizes), dtype=np.float64)
    shares = np.array([study.objective_value(float(study.costs[t.index])) for t in trials])
    unit = percentage_factor(study)
    if not _are_example_shares(study, metric, shares / unit, sizes):
        raise MissingData(
            f"{metric} is no share of right or wrong examples, so its error needs the standard deviation over the validation "
            f"examples; log it as {std_metric}"
        )
    return unit * error_of_share(shares / unit, sizes)


def _examples_per_prompt(trial: Trial) -> float:
    """Return the effective number of validation examples per prompt of an evaluation by TRL; 1 if the number of completions is
    unknown.

    TRL logs the standard deviation between a prompt's n completions, averaged over the prompts. Each trial samples its own
    completions, so these errors are not correlated between trials (see `ERROR_CORRELATION`). The mean of standard deviations is
    below their root mean square: for 0-1 rewards, the squares differ by (n + 1) / (n - 1).
    """
    numbers = (as_number(trial.params.get(name)) for name in ("num_generations_eval", "num_generations"))
    n = next((n for n in numbers if n >= 1), 1.0)
    return (1 - ERROR_CORRELATION) * n * (n - 1) / (n + 1) if n > 1 else 1.0


def _std_metric_name(study: Study) -> str:
    """Return the metric with the objective's standard deviation over the examples: the recommended name, or TRL's name for
    rewards."""
    ours, of_rewards = (study.spec.objective.metric + suffix for suffix in (contract.STD_SUFFIX, "_std"))
    found = study.kind == "reinforcement-learning" and ours not in study.metrics and of_rewards in study.metrics
    return of_rewards if found else ours


def _deviations_over_examples(study: Study, trials: Sequence[Trial], metric: str) -> FloatArray:
    """Return each trial's standard deviation over the examples, shape (k,): the last value logged up to the trial's best step."""
    deviations = np.full(len(trials), np.nan)
    for i, trial in enumerate(trials):
        costs, logged = study.cost_curve(trial).finite, study.metrics[metric].curve(trial.index).finite
        at = np.searchsorted(logged.steps, costs.steps[np.argmin(costs.values)], side="right") - 1
        if at >= 0:
            deviations[i] = logged.values[at]
    if not np.isfinite(deviations).all():
        raise MissingData(f"not all of the best trials logged {metric} with their best evaluation")
    return deviations


def _are_example_shares(study: Study, metric: str, shares: FloatArray, sizes: FloatArray) -> bool:
    """Return True if the metric is a count of examples divided by the number of examples. shares: its values, shape (k,).

    An accuracy is recognised by the name of its metric. An error rate is recognised only if each error rate times the number of
    examples is also a whole number.
    """
    words = set(words_of_name(metric))
    if words & _OTHER_METRIC_WORDS or shares.min() < 0 or shares.max() > 1:
        return False
    if words & _ACCURACY_WORDS:
        return True
    counts = shares * sizes
    # Values may be rounded to four digits or stored as 32-bit floats, so allow a small error.
    are_counts = bool((np.abs(counts - np.round(counts)) <= 1e-3 * counts + 0.01).all())
    return bool(words & _ERROR_RATE_WORDS) and (are_counts or any("classes" in t.facts for t in study.trials))


def validation_class_counts(trial: Trial) -> list[int]:
    """Return the logged number of validation examples per class; empty if these numbers were not logged."""
    try:
        fact = trial.parsed_fact("valid_class_counts")
    except ValueError:
        return []
    return fact if isinstance(fact, list) and all(isinstance(n, int) for n in fact) else []


_BOUNDED_METRIC_WORDS = _ACCURACY_WORDS | {"auc", "auroc", "f1", "dice", "iou"}
"""Words that show that the maximum of a metric is 1, or 100 for percentages."""


def distance_to_perfect_score(study: Study) -> float:
    """Return the distance of the best result from a perfect score; infinite if the perfect score is unknown."""
    best, words = study.ranked()[:1], set(words_of_name(study.spec.objective.metric))
    if best and study.minimize and study.kind == "language-model" and "loss" in words:
        return max(float(study.costs[best[0].index]), 0.0)  # this cost is a cross-entropy, whose minimum is 0
    bounded = words & (_ERROR_RATE_WORDS - _OTHER_METRIC_WORDS if study.minimize else _BOUNDED_METRIC_WORDS)
    if not best or not bounded:
        return math.inf
    cost, unit = float(study.costs[best[0].index]), percentage_factor(study)
    room = cost if study.minimize else unit + cost
    return room if 0 <= room <= unit else math.inf


MIN_PERFECT_SETTINGS = 3
"""With at least this many settings at a perfect score, the evaluation no longer distinguishes settings."""


def perfect_trials(study: Study) -> list[Trial]:
    """Return the best trial of each setting with a perfect score, such as an accuracy of 1.

    Return an empty list for fewer than `MIN_PERFECT_SETTINGS` settings with a perfect score.
    """
    best = study.ranked()[:1]
    limit = 0.0 if study.minimize else -percentage_factor(study)
    if not best or study.costs[best[0].index] != limit:
        return []
    tied = repeats.first_trial_per_setting(t for t in study.ranked() if study.costs[t.index] == limit)
    return tied if len(tied) >= MIN_PERFECT_SETTINGS else []
