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
GroupStatistic = Literal["median", "least"]

_MAX_PLAUSIBLE_EPOCHS = 200
"""A curve with a later last step counts optimizer steps, unless the trials log another unit."""
MIN_SETTINGS_PER_BATCH_SIZE = 3
"""Minimum number of settings with a batch size for its learning rate to count as tuned."""
_MIN_RELATIVE_IMPROVEMENT = 0.5
"""Minimum improvement of a batch size that affects the target, as a share of the largest one."""
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
    """Epochs or examples until the target, (n,), inf if never: one entry per setting, or per repeat of the best setting if
    every batch size has repeats."""
    seconds_to_target: float
    """Median seconds from the start of a trial to the target; NaN if unknown."""


@dataclass(frozen=True, slots=True)
class BatchSizeComparison:
    """Batch sizes by the epochs or examples until their trials reach the same objective value."""

    groups: tuple[BatchSizeGroup, ...]
    """One group per batch size, smallest batch size first."""
    unit: Literal["epochs", "examples"]
    target_value: float
    """NaN if the objective itself counts epochs or steps to a target."""
    statistic: GroupStatistic
    """Statistic that summarises the epochs or examples of one batch size: median over repeats, or minimum over settings."""


@dataclass(frozen=True, slots=True)
class _BatchSizeSetting:
    size: float
    trials: tuple[Trial, ...]


@computed
def compare_batch_sizes(study: Study, share: float) -> BatchSizeComparison:
    """Compare batch sizes by the epochs or examples until a common objective value. Raises MissingData without a common target.

    The target is start + share * (end - start), where `start` and `end` are costs of the batch size that improves least.
    `share` must be below 1, because noise decides when a curve reaches a value near its plateau.
    """
    settings = _feasible_settings(study)
    _require_two_batch_sizes(settings, "have trials with a result, which this comparison needs")
    if _have_same_learning_rate(study, settings):
        raise MissingData(
            "every batch size was trained with the same learning rate; batch sizes compare only with a learning rate tuned for "
            "each",
            needs="design",
        )
    unit = unit_of_target_metric(study.spec.objective.metric)
    if unit is not None:
        return _compare_counts_to_target(study, settings, unit)
    repeated, number = {s.size for s in settings if len(s.trials) >= 2}, Counter(s.size for s in settings)
    if not number.keys() <= repeated:
        settings = [s for s in settings if number[s.size] >= MIN_SETTINGS_PER_BATCH_SIZE]
    _require_two_batch_sizes(
        settings,
        f"have {MIN_SETTINGS_PER_BATCH_SIZE} settings with a result, or repeats of one, such as 3 seeds each; "
        "to compare batch sizes, tune the learning rate for each",
    )
    axis = training_step_unit(study)
    curves = {t.index: study.cost_curve(t).finite for s in settings for t in s.trials}
    target = _target_cost(settings, curves, share)
    hits = {t: _first_step_below_target(curve, target) for t, curve in curves.items()}
    steps = {t: hit[0] for t, hit in hits.items()}
    settings = [s for s in settings if np.isfinite(_lower_median([steps[t.index] for t in s.trials]))]
    _require_two_batch_sizes(settings, "improved enough to define a common target; train each batch size for longer")
    compared_settings, statistic = _settings_to_compare(settings, steps)
    groups = [
        _batch_size_group(size, group, hits, size if axis == "steps" else 1.0, statistic)
        for size, group in compared_settings.items()
    ]
    return BatchSizeComparison(tuple(groups), "epochs" if axis == "epochs" else "examples", target, statistic)


def _require_two_batch_sizes(settings: Sequence[_BatchSizeSetting], lack: str) -> None:
    if len({s.size for s in settings}) < 2:
        raise MissingData(f"fewer than two batch sizes {lack}", needs="design")


def _batch_size_group(
    size: float,
    settings: Sequence[_BatchSizeSetting],
    hits: Mapping[int, tuple[float, float]],
    per_step: float,
    statistic: GroupStatistic,
) -> BatchSizeGroup:
    """hits: for each trial index, (step, time in seconds) at which the trial reaches the target."""
    needed = [[hits[t.index][0] * per_step for t in s.trials] for s in settings]
    values = needed[0] if statistic == "median" else [_lower_median(n) for n in needed]
    trials = tuple(t for s in settings for t in s.trials)
    seconds = [s for t in trials if math.isfinite(s := hits[t.index][1])]
    return BatchSizeGroup(size, trials, np.array(values), float(np.median(seconds)) if seconds else math.nan)


def unit_of_target_metric(metric: str) -> TrainingUnit | None:
    """Return the unit if the metric counts epochs, examples or steps to a target, as epochs_to_target does; else None."""
    words = words_of_name(metric)
    return next((_UNIT_BY_WORD[w] for w in words if w in _UNIT_BY_WORD), None) if "target" in words else None


def training_step_unit(study: Study) -> TrainingUnit:
    """Return the unit of the study's training steps: optimizer steps, unless logged facts or the curves show another unit."""
    if study.unit == "epoch":
        return "epochs"
    ended_trials = [t for t in study.trials if study.ended[t.index] and len(study.cost_curve(t))]
    last = {t.index: int(study.cost_curve(t).steps[-1]) for t in ended_trials}
    epochs = [(as_number(v), last[t.index]) for t in ended_trials for n, v in t.params.items() if is_number_of_epochs(n)]
    if epochs and all(planned_epochs - end in (0, 1) for planned_epochs, end in epochs):
        return "epochs"
    if any(math.isfinite(t.fact("max_train_steps")) for t in ended_trials):
        return "steps"
    sizes = [(parameter_kinds.batch_size(t), study.cost_curve(t).steps) for t in ended_trials]
    is_multiple = [not (steps % int(size)).any() for size, steps in sizes if size >= 8 and len(steps) >= 3]
    if len({size for size, _ in sizes}) > 1 and len(is_multiple) == len(sizes) and all(is_multiple):
        return "examples"
    longest = max((int(b.steps.max()) for b in study.metrics.values() if len(b.steps)), default=0)
    return "epochs" if longest <= _MAX_PLAUSIBLE_EPOCHS else "steps"


def steps_are_epochs(study: Study) -> bool:
    """Return True if each step of the curves is an epoch: there are few steps, and the objective was logged at every step."""
    gaps = [np.diff(c.steps) for t in study.trials if len(c := study.cost_curve(t)) > 1]
    return bool(gaps) and bool((np.concatenate(gaps) == 1).all()) and training_step_unit(study) == "epochs"


def _feasible_settings(study: Study) -> list[_BatchSizeSetting]:
    """Return the distinct settings of feasible trials whose batch size is known, smallest batch size first."""
    pools: dict[tuple[float, tuple[tuple[str, HyperparameterValue], ...]], list[Trial]] = {}
    for trial in study.trials:
        size = parameter_kinds.batch_size(trial)
        if study.feasible[trial.index] and size > 0:
            others = tuple(sorted((n, v) for n, v in trial.params.items() if not n.lower().endswith("seed")))
            pools.setdefault((size, others), []).append(trial)
    return [_BatchSizeSetting(size, tuple(trials)) for (size, _), trials in sorted(pools.items(), key=lambda item: item[0][0])]


def _have_same_learning_rate(study: Study, settings: Sequence[_BatchSizeSetting]) -> bool:
    names = [n for n in study.spec.parameters if is_learning_rate(n)]
    rates = {tuple(str(s.trials[0].params.get(n)) for n in names) for s in settings}
    logged_rates = {s.trials[0].facts.get("optimizer.learning_rate") for s in settings}
    return len(rates) == 1 and (bool(names) or (None not in logged_rates and len(logged_rates) == 1))


def _compare_counts_to_target(study: Study, settings: Sequence[_BatchSizeSetting], unit: TrainingUnit) -> BatchSizeComparison:
    values = {t.index: study.metric(t, study.spec.objective.metric).finite.values for s in settings for t in s.trials}
    compared_settings, statistic = _settings_to_compare(settings, {t: _lower_median(v) for t, v in values.items()}, values)
    groups = []
    for size, group in compared_settings.items():
        per_step = size if unit == "steps" else 1.0
        needed_by_setting = [np.concatenate([values[t.index] for t in s.trials]) * per_step for s in group]
        needed = needed_by_setting[0] if statistic == "median" else np.array([_lower_median(e) for e in needed_by_setting])
        groups.append(BatchSizeGroup(size, tuple(t for s in group for t in s.trials), needed, math.nan))
    return BatchSizeComparison(tuple(groups), "epochs" if unit == "epochs" else "examples", math.nan, statistic)


def _settings_to_compare(
    settings: Sequence[_BatchSizeSetting], needed: dict[int, float], values: dict[int, FloatArray] | None = None
) -> tuple[dict[float, list[_BatchSizeSetting]], GroupStatistic]:
    """Return (settings by batch size, statistic to compare them): the best repeated setting of each batch size, or all settings
    if some batch size has no repeated one."""
    by_size: dict[float, list[_BatchSizeSetting]] = {}
    for setting in settings:
        by_size.setdefault(setting.size, []).append(setting)

    def repeats(setting: _BatchSizeSetting) -> int:
        return len(setting.trials) if values is None else sum(len(values[t.index]) for t in setting.trials)

    repeated = {size: [s for s in group if repeats(s) >= 2] for size, group in by_size.items()}
    if not all(repeated.values()):
        return by_size, "least"
    best = {size: min(g, key=lambda s: _lower_median([needed[t.index] for t in s.trials])) for size, g in repeated.items()}
    return {size: [setting] for size, setting in best.items()}, "median"


def _target_cost(settings: Sequence[_BatchSizeSetting], curves: dict[int, Curve], share: float) -> float:
    """Return the target cost, without the batch sizes that improved less than half as much as the best one."""
    starts = [float(c.values[0]) for c in curves.values() if len(c)]
    best: dict[float, float] = {}
    for s in settings:
        result = _lower_median([float(curves[t.index].values.min()) for t in s.trials])
        best[s.size] = min(result, best.get(s.size, math.inf))
    start = float(np.median(starts))
    worst_results = [cost for cost in best.values() if start - cost >= _MIN_RELATIVE_IMPROVEMENT * (start - min(best.values()))]
    return start - share * (start - max(worst_results))


def _first_step_below_target(curve: Curve, target: float) -> tuple[float, float]:
    """Return (steps, seconds) at which a cost curve first reaches the target, interpolated; (inf, NaN) if never."""
    below = np.flatnonzero(curve.values <= target)
    if not len(below):
        return math.inf, math.nan
    i = int(below[0])
    if i == 0:
        return float(max(curve.steps[0], 1)), float(curve.times[0])
    before, after = float(curve.values[i - 1]), float(curve.values[i])
    fraction = (before - target) / (before - after)
    steps, times = curve.steps[i - 1 : i + 1].astype(float), curve.times[i - 1 : i + 1]
    return float(steps[0] + fraction * (steps[1] - steps[0])), float(times[0] + fraction * (times[1] - times[0]))


def _lower_median(values: Sequence[float] | FloatArray) -> float:
    return float(np.sort(np.asarray(values, dtype=np.float64))[(len(values) - 1) // 2]) if len(values) else math.inf
