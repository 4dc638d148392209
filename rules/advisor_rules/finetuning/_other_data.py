"""Finds evaluations on data other than that of the objective, and tests whether they get worse while the objective improves."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from advisor.contract.metric_direction import (
    SPLIT_BY_WORD,
    direction_of_metric,
    quantity_words,
    split_of_metric,
    words_of_metric,
)
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.stats import ranks
from advisor.stats.blocks import MeanLevel, mean_level
from advisor.stats.curve import noise

MIN_EVALUATIONS = 6
"""Minimum number of evaluations to tell a decline from noise."""
_METRIC_VARIANT_WORDS = frozenset(
    "kl recon reconstruction aux reg cls box classification total weighted balance router z token tokens chosen rejected reward "
    "rewards margin margins ema best last min max top smoothed std sd full".split()
)
"""Words in metric names that mark a part or a variant of another metric on the same data."""
_DATASET_WORDS = frozenset(
    "old new base source general original pretrain pretrained pretraining ood held heldout retain retained replay previous "
    "upstream wiki wikitext wikipedia".split()
)
"""Words in metric names that denote a dataset."""


@dataclass(frozen=True, slots=True)
class MetricDecline:
    """The change of a metric in one trial while the objective improves."""

    trial: Trial
    first_value: float
    """Value of the metric at the first evaluation."""
    later_mean: float
    """Mean of the metric over the second half of the evaluations."""
    relative_decline: float
    """Decline of the metric as a share of its first value; negative if the metric improved."""
    p_value: float
    """p-value of the decline, corrected for the number of tested metrics. It is the larger p-value of two tests: the metric's
    late level is worse than its first value, and the objective improves steadily."""


def metrics_on_other_data(study: Study) -> list[str]:
    """Return the names of the metrics that measure the same quantity as the objective on other data, sorted."""
    objective = study.spec.objective.metric
    timed = {
        word for name in study.metrics if words_of_metric(name)[-1:] == ("runtime",) for word in words_of_metric(name)[:-1]
    }
    return sorted(name for name in study.metrics if name != objective and _evaluates_other_data(name, objective, timed))


def _evaluates_other_data(name: str, objective: str, timed: Set[str]) -> bool:
    """Return True if the two metric names differ by a word for a dataset. `timed` holds the dataset names for which
    Transformers logged a metric `eval_NAME_runtime`."""
    if split_of_metric(name) not in ("valid", "test") or name.endswith((".min", ".max")):
        return False
    same_quantity = quantity_words(name)[-1:] == quantity_words(objective)[-1:] and direction_of_metric(
        name
    ) == direction_of_metric(objective)
    mine, other = (frozenset(words_of_metric(n)) - SPLIT_BY_WORD.keys() for n in (name, objective))
    if not same_quantity or (mine ^ other) & _METRIC_VARIANT_WORDS:
        return False
    added = mine - other
    return bool(added & (_DATASET_WORDS | timed | _dataset_words(name)) or (added and (other - mine) & _DATASET_WORDS))


def _dataset_words(name: str) -> frozenset[str]:
    """Return the words of the dataset name before the slash of a metric name, such as "sums" for `eval_sums/loss`."""
    parts = [part for part in name.split("/")[:-1] if split_of_metric(part) and direction_of_metric(part) is None]
    return frozenset(word for part in parts for word in quantity_words(part))


def measure_metric_declines(study: Study, trials: Sequence[Trial], metric: str, tests: int) -> list[MetricDecline]:
    """Return the change of the metric in each trial with enough evaluations. `tests` is the number of tested metrics, by which
    each p-value is multiplied."""
    found = []
    sign = 1.0 if study.minimize else -1.0
    for trial in trials:
        curve, cost = study.metric(trial, metric).finite, study.cost_curve(trial).finite
        if min(len(curve), len(cost)) >= MIN_EVALUATIONS:
            p_gain = ranks.p_value_of_fall(cost.steps.astype(np.float64), cost.values)
            found.append(_metric_decline(trial, curve.values, sign, p_gain, tests))
    return found


def _metric_decline(trial: Trial, values: FloatArray, sign: float, p_gain: float, tests: int) -> MetricDecline:
    costs = sign * values
    first, late = MeanLevel(float(costs[0]), noise(costs), len(costs) - 3.0), mean_level(costs[len(costs) // 2 :])
    worse = (late.mean - first.mean) / abs(first.mean) if first.mean else 0.0
    p = max(late.p_value_above_other(first), p_gain)
    return MetricDecline(trial, sign * first.mean, sign * late.mean, worse, min(1.0, tests * p))
