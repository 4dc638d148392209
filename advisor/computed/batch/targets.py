"""Compares batch sizes by the number of epochs or examples that their trials need to reach the same objective value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from advisor.computed import computed
from advisor.model import parameter_kinds
from advisor.model.finding import MissingData
from advisor.model.space import FloatArray, HyperparameterValue, as_number, is_learning_rate, is_number_of_epochs, words_of_name
from advisor.model.study import Curve, Study, Trial

TrainingUnit = Literal["steps", "epochs", "examples"]
LengthStatistic = Literal["median", "least"]

_MAX_PLAUSIBLE_EPOCHS = 200
"""Maximum number of epochs of a training: a larger last step of a curve counts optimizer steps, unless trials log the unit."""
MIN_SETTINGS_PER_BATCH_SIZE = 3
"""Minimum number of settings per batch size; with fewer, the learning rate does not count as tuned for the batch size."""
_MIN_RELATIVE_IMPROVEMENT = 0.5
"""Minimum improvement of the cost at a batch size that affects the target cost, as a share of the largest improvement."""
_UNIT_BY_WORD: dict[str, TrainingUnit] = {
    "epoch": "epochs",
    "epochs": "epochs",
    "step": "steps",
    "steps": "steps",
    "iterations": "steps",
    "examples": "examples",
    "samples": "examples",
}


@dataclass(frozen=True, slots=True)
class BatchSizeGroup:
    """The trials of one batch size, and the number of epochs or examples that they needed to reach the target value."""

    batch_size: float
    trials: tuple[Trial, ...]
    lengths_to_target: FloatArray
    """Epochs or examples until the target value is reached, shape (n,); inf if never. One entry per setting or, if every batch
    size has repeats, per repeat of its best setting."""
    seconds_to_target: float
    """Median seconds from the start of a trial to the target; NaN if unknown."""


@dataclass(frozen=True, slots=True)
class BatchSizeComparison:
    """Comparison of batch sizes by the epochs or examples that their trials need to reach the same objective value."""

    groups: tuple[BatchSizeGroup, ...]
    """One group per batch size, smallest batch size first."""
    unit: Literal["epochs", "examples"]
    target_value: float
    """Objective value to reach; NaN if the objective itself counts epochs or steps to a target."""
    statistic: LengthStatistic
    """Statistic that summarises the epochs or examples of one batch size: median over repeats, or minimum over settings."""


@dataclass(frozen=True, slots=True)
class _Setting:
    size: float
    trials: tuple[Trial, ...]


@computed
def compare_batch_sizes(study: Study, share: float) -> BatchSizeComparison:
    """Compare batch sizes by the epochs or examples until a common objective value. Raises MissingData without a common target.

    The target is start + share * (end - start): `start` is the median initial cost of the trials, and `end` the best cost of the
    batch size that improves least. `share` must be below 1, because noise decides when a curve reaches its plateau.
    """
    settings = _feasible_settings(study)
    _require_two_batch_sizes(settings, "have trials with a result")
    if _have_same_learning_rate(study, settings):
        raise MissingData(
            "every batch size was trained with the same learning rate; batch sizes compare only with a learning rate tuned for "
            "each",
            needs="design",
        )
    unit_of_objective = unit_of_target_metric(study.spec.objective.metric)
    if unit_of_objective is not None:
        counts = {t.index: study.metric(t, study.spec.objective.metric).finite.values for s in settings for t in s.trials}
        return _compare_lengths(settings, counts, {}, unit_of_objective, math.nan)
    repeated_sizes, settings_per_size = {s.size for s in settings if len(s.trials) >= 2}, Counter(s.size for s in settings)
    if not settings_per_size.keys() <= repeated_sizes:
        settings = [s for s in settings if settings_per_size[s.size] >= MIN_SETTINGS_PER_BATCH_SIZE]
    _require_two_batch_sizes(
        settings,
        f"have {MIN_SETTINGS_PER_BATCH_SIZE} settings with a result, or repeats of one, such as 3 seeds each; "
        "to compare batch sizes, tune the learning rate for each",
    )
    step_unit = training_step_unit(study)
    cost_curves = {t.index: study.cost_curve(t).finite for s in settings for t in s.trials}
    target_cost = _target_cost(settings, cost_curves, share)
    hits = {t: _first_step_below_target(curve, target_cost) for t, curve in cost_curves.items()}
    settings = [s for s in settings if np.isfinite(_lower_median([hits[t.index][0] for t in s.trials]))]
    _require_two_batch_sizes(settings, "improved enough to define a common target; train each batch size for longer")
    lengths, seconds = {t: np.array([steps]) for t, (steps, _) in hits.items()}, {t: s for t, (_, s) in hits.items()}
    return _compare_lengths(settings, lengths, seconds, step_unit, target_cost)


def _require_two_batch_sizes(settings: Sequence[_Setting], lack: str) -> None:
    if len({s.size for s in settings}) < 2:
        raise MissingData(f"fewer than two batch sizes {lack}", needs="design")


def _compare_lengths(
    tried: Sequence[_Setting], lengths: Mapping[int, FloatArray], times: Mapping[int, float], unit: TrainingUnit, target: float
) -> BatchSizeComparison:
    """lengths, times: for each trial index, the trial's lengths until the target in `unit`, and the times until then."""
    compared_settings, statistic = _settings_to_compare(tried, lengths)
    groups = []
    for size, group in compared_settings.items():
        per_step = size if unit == "steps" else 1.0
        by_setting = [np.concatenate([lengths[t.index] for t in s.trials]) * per_step for s in group]
        lengths_to_target = by_setting[0] if statistic == "median" else np.array([_lower_median(x) for x in by_setting])
        trials = tuple(t for s in group for t in s.trials)
        known_seconds = [s for t in trials if math.isfinite(s := times.get(t.index, math.nan))]
        median_seconds = float(np.median(known_seconds)) if known_seconds else math.nan
        groups.append(BatchSizeGroup(size, trials, lengths_to_target, median_seconds))
    return BatchSizeComparison(tuple(groups), "epochs" if unit == "epochs" else "examples", target, statistic)


def unit_of_target_metric(metric: str) -> TrainingUnit | None:
    """Return the unit if the metric counts epochs, examples or steps to a target, as epochs_to_target does; else None."""
    metric_words = words_of_name(metric)
    return next((_UNIT_BY_WORD[w] for w in metric_words if w in _UNIT_BY_WORD), None) if "target" in metric_words else None


def training_step_unit(study: Study) -> TrainingUnit:
    """Return the unit of the study's training steps: optimizer steps, unless logged facts or the curves show another unit."""
    if study.unit == "epoch":
        return "epochs"
    ended = [t for t in study.trials if study.ended[t.index] and len(study.cost_curve(t))]
    last_steps = {t.index: int(study.cost_curve(t).steps[-1]) for t in ended}
    lengths = [(as_number(v), last_steps[t.index]) for t in ended for n, v in t.params.items() if is_number_of_epochs(n)]
    if lengths and all(epochs - end in (0, 1) for epochs, end in lengths):
        return "epochs"
    if any(math.isfinite(t.fact("max_train_steps")) for t in ended):
        return "steps"
    sizes_and_steps = [(parameter_kinds.batch_size(t), study.cost_curve(t).steps) for t in ended]
    are_multiples = [not (steps % int(size)).any() for size, steps in sizes_and_steps if size >= 8 and len(steps) >= 3]
    if len({n for n, _ in sizes_and_steps}) > 1 and len(are_multiples) == len(sizes_and_steps) and all(are_multiples):
        return "examples"
    largest_step = max((int(b.steps.max()) for b in study.metrics.values() if len(b.steps)), default=0)
    return "epochs" if largest_step <= _MAX_PLAUSIBLE_EPOCHS else "steps"


def steps_are_epochs(study: Study) -> bool:
    """Return True if each step of the curves is an epoch: there are few steps, and the objective was logged at every step."""
    differences = [np.diff(c.steps) for t in study.trials if len(c := study.cost_curve(t)) > 1]
    return bool(differences) and bool((np.concatenate(differences) == 1).all()) and training_step_unit(study) == "epochs"


def _feasible_settings(study: Study) -> list[_Setting]:
    trials_by_setting: dict[tuple[float, tuple[tuple[str, HyperparameterValue], ...]], list[Trial]] = {}
    for trial in study.trials:
        batch_size = parameter_kinds.batch_size(trial)
        if study.feasible[trial.index] and batch_size > 0:
            other_params = tuple(sorted((n, v) for n, v in trial.params.items() if not n.lower().endswith("seed")))
            trials_by_setting.setdefault((batch_size, other_params), []).append(trial)
    settings = sorted(trials_by_setting.items(), key=lambda item: item[0][0])
    return [_Setting(batch_size, tuple(trials)) for (batch_size, _), trials in settings]


def _have_same_learning_rate(study: Study, settings: Sequence[_Setting]) -> bool:
    rate_names = [n for n in study.spec.parameters if is_learning_rate(n)]
    learning_rates = {tuple(str(s.trials[0].params.get(n)) for n in rate_names) for s in settings}
    logged_rates = {s.trials[0].facts.get("optimizer.learning_rate") for s in settings}
    return len(learning_rates) == 1 and (bool(rate_names) or (None not in logged_rates and len(logged_rates) == 1))


def _settings_to_compare(
    settings: Sequence[_Setting], lengths: Mapping[int, FloatArray]
) -> tuple[dict[float, list[_Setting]], LengthStatistic]:
    """Return (settings by batch size, statistic to compare them): the best repeated setting of each batch size, or all settings
    if some batch size has no repeated setting."""
    settings_by_size: dict[float, list[_Setting]] = {}
    for setting in settings:
        settings_by_size.setdefault(setting.size, []).append(setting)

    repeated_settings = {
        size: [s for s in group if sum(len(lengths[t.index]) for t in s.trials) >= 2]
        for size, group in settings_by_size.items()
    }
    if not all(repeated_settings.values()):
        return settings_by_size, "least"

    def median_length(setting: _Setting) -> float:
        return _lower_median([_lower_median(lengths[t.index]) for t in setting.trials])

    return {size: [min(group, key=median_length)] for size, group in repeated_settings.items()}, "median"


def _target_cost(settings: Sequence[_Setting], curves: dict[int, Curve], share: float) -> float:
    """Return the target cost. Batch sizes that improve by less than half of the largest improvement are ignored."""
    best_costs: dict[float, float] = {}
    for s in settings:
        best_cost_of_setting = _lower_median([float(curves[t.index].values.min()) for t in s.trials])
        best_costs[s.size] = min(best_cost_of_setting, best_costs.get(s.size, math.inf))
    initial_cost = float(np.median([float(c.values[0]) for c in curves.values() if len(c)]))
    min_improvement = _MIN_RELATIVE_IMPROVEMENT * (initial_cost - min(best_costs.values()))
    return initial_cost - share * (initial_cost - max(c for c in best_costs.values() if initial_cost - c >= min_improvement))


def _first_step_below_target(curve: Curve, target: float) -> tuple[float, float]:
    """Return (steps, seconds) at which a cost curve first reaches the target, interpolated; (inf, NaN) if never."""
    indices_below_target = np.flatnonzero(curve.values <= target)
    if not len(indices_below_target):
        return math.inf, math.nan
    i = int(indices_below_target[0])
    if i == 0:
        return float(max(curve.steps[0], 1)), float(curve.times[0])
    before, after = float(curve.values[i - 1]), float(curve.values[i])
    fraction = (before - target) / (before - after)
    steps, times = curve.steps[i - 1 : i + 1].astype(float), curve.times[i - 1 : i + 1]
    return float(steps[0] + fraction * (steps[1] - steps[0])), float(times[0] + fraction * (times[1] - times[0]))


def _lower_median(values: Sequence[float] | FloatArray) -> float:
    return float(np.sort(np.asarray(values, dtype=np.float64))[(len(values) - 1) // 2]) if len(values) else math.inf
