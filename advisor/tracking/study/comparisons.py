"""Compares trials by their last values and by other metrics, and reports what contradicts the analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from advisor.contract import metric_direction
from advisor.model.reading import Decision
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.model.words import clean, number
from advisor.tracking.study import declared, metric_names
from advisor.tracking.study.metric_names import is_reward_of_preferences

_MAX_FALSE_WARNING_PROBABILITY = 0.05
"""Maximum probability, per study, of a false warning that two metrics disagree."""
_MIN_COMPARED_TRIALS = 8
"""Minimum number of trials for testing whether two metrics prefer different settings."""
_MODEL_COST_WORDS = frozenset("latency vram flops macs".split())
"""Words of metrics that measure the cost of running a trained model."""
_COST_WORDS = frozenset(("memory", "energy"))
_COST_UNITS = frozenset("mb gb mib gib bytes gpu cuda peak joule joules j kwh wh".split())
"""Units and devices that show that a metric measures memory or energy, and not a quality."""
_NON_QUALITY_WORDS = _MODEL_COST_WORDS | frozenset(("average", "time", "cost"))
"""Words that have a better direction (lower or higher), but name no quality."""


def add_metric_comparisons(study: Study, summaries: Mapping[int, float]) -> Study:
    """Add decisions and warnings about comparisons that contradict the analysis to the study. summaries: objective that each
    trial logged without a step at its end, by which tuners compare trials."""
    decisions = list(study.decisions)
    counts = [declared.count_objective_directions(t.tags) for t in study.trials]
    if counts and min(counts) > 1:
        metric = clean(study.spec.objective.metric)
        text = f"The tuner optimised {counts[0]} objectives together. This analysis judges {metric} alone."
        decisions.append(Decision(topic="objective", text=text, overrule="--objective METRIC"))
    decisions += _last_value_decision(study, summaries)
    warnings = (*study.warnings, *_metric_disagreement_warning(study), *_model_cost_warning(study))
    return replace(study, decisions=tuple(decisions), warnings=warnings)


def _last_value_decision(study: Study, summaries: Mapping[int, float]) -> Iterator[Decision]:
    ranked_trials = study.ranked()
    sign = 1 if study.minimize else -1
    last_values = {}
    for trial in ranked_trials:
        curve = study.cost_curve(trial)
        cost = sign * summaries[trial.index] if trial.index in summaries else float(curve.values[-1])
        if math.isfinite(cost):
            last_values[trial.index] = cost
    if len(last_values) < 2:
        return
    winner = min(last_values, key=lambda i: last_values[i])
    best_trial = ranked_trials[0].index
    if last_values[winner] >= last_values.get(best_trial, math.inf):
        return
    basis = "the value logged at the end, which tuners compare" if summaries else "the last value, which many tuners compare"
    values = [number(study.objective_value(c)) for c in (float(study.costs[best_trial]), last_values[winner])]
    yield Decision(
        topic="objective",
        text=f"Trials are compared by their best step: the best is {clean(study.trials[best_trial].name)} ({values[0]}). By "
        f"{basis}, it is {clean(study.trials[winner].name)} ({values[1]}).",
    )


def _metric_disagreement_warning(study: Study) -> Iterator[str]:
    trials = study.ranked()
    names = [n for n, p in study.searched.items() if p.numeric]
    other_metrics = _other_objectives(study)
    tests = len(names) * len(other_metrics)
    for other, sign in other_metrics:
        curves = [study.metrics[other].curve(t.index).finite.values for t in trials]
        costs = np.array([float((sign * values).min()) if len(values) else math.nan for values in curves])
        for name in names:
            positions = study.positions(name, trials)
            is_known = np.isfinite(costs) & np.isfinite(positions)
            if is_known.sum() < _MIN_COMPARED_TRIALS:
                continue
            own_costs = study.costs[[t.index for t in trials]][is_known]
            own = _rank_correlation(positions[is_known], own_costs, _MAX_FALSE_WARNING_PROBABILITY / tests)
            its = _rank_correlation(positions[is_known], costs[is_known], _MAX_FALSE_WARNING_PROBABILITY / tests)
            if own * its < 0:
                low, high = ("low", "high") if own > 0 else ("high", "low")
                yield (
                    f"The metrics disagree: {clean(study.spec.objective.metric)} is better at {low} "
                    f"{clean(name)}, {clean(other)} at {high} {clean(name)}. "
                    "The analysis uses the first metric; choose another one with --objective."
                )
                return


def _model_cost_warning(study: Study) -> Iterator[str]:
    trials, metric = study.ranked(), clean(study.spec.objective.metric)
    costs = study.costs[[t.index for t in trials]]
    names = [m for m in sorted(study.metrics) if _measures_cost(study, m)]
    for name in names:
        curves = [study.metrics[name].curve(t.index).finite.values for t in trials]
        values = np.array([float(c[-1]) if len(c) else math.nan for c in curves])
        is_known, level = np.isfinite(values), _MAX_FALSE_WARNING_PROBABILITY / len(names)
        if is_known.sum() >= _MIN_COMPARED_TRIALS and _rank_correlation(values[is_known], costs[is_known], level) < 0:
            low, high = number(float(values[is_known].min())), number(float(values[is_known].max()))
            yield (
                f"Trials with better {metric} have higher {clean(name)} ({low} to {high}). The analysis judges {metric} alone. If "
                f"{clean(name)} is limited, declare `limits` in the study file for the hyperparameters that raise it."
            )
            return


def _measures_cost(study: Study, name: str) -> bool:
    own = name == study.spec.objective.metric or name in study.signals.values()
    words = metric_direction.words_of_metric(name)
    of_model = not _MODEL_COST_WORDS.isdisjoint(words) or not (_COST_WORDS.isdisjoint(words) or _COST_UNITS.isdisjoint(words))
    names_quality = metric_direction.direction_of_metric("_".join(w for w in words if w not in _NON_QUALITY_WORDS)) is not None
    return not own and not metric_names.is_window_or_system_metric(name) and of_model and not names_quality


def _other_objectives(study: Study) -> list[tuple[str, int]]:
    """Return (metric, sign of its cost) for metrics on the objective's data split that tell a better direction. Metrics of
    a language model's own predictions are excluded. In preference training, so are the loss and the rewards of answers, because
    they are functions of the same margin."""
    own = study.spec.objective.metric
    split = metric_direction.split_of_metric(own)
    metrics_by_quantity: dict[tuple[str, ...], tuple[str, int]] = {}
    for metric in sorted(study.metrics, key=lambda m: (len(m), m)):
        quantity = metric_direction.quantity_words(metric)
        direction = metric_direction.direction_of_metric(metric)
        if metric_direction.split_of_metric(metric) != split or direction is None:
            continue
        if metric_names.describes_model_predictions(metric) or is_reward_of_preferences(metric):
            continue
        if is_reward_of_preferences(own) and quantity == ("loss",):
            continue
        if metric_names.may_measure_quality(metric) and quantity != metric_direction.quantity_words(own):
            metrics_by_quantity.setdefault(quantity, (metric, 1 if direction == "minimize" else -1))
    return list(metrics_by_quantity.values())


def _rank_correlation(positions: FloatArray, costs: FloatArray, level: float) -> float:
    """Return Spearman's rank correlation, or 0 if it is not significant at `level`."""
    if len(np.unique(positions)) < 2 or len(np.unique(costs)) < 2:
        return 0.0
    from scipy.stats import spearmanr  # imported here because the import is slow and rarely needed

    result = spearmanr(positions, costs)
    return float(result.statistic) if result.pvalue <= level else 0.0
