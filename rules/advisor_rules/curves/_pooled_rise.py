"""Tests over all trials of a study whether a validation metric rises at the end, for trials with few evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.computed.curves.overfit import MIN_EVALUATIONS_TO_POOL, TRAINING_SIGNALS, CostCurveFunction
from advisor.model import parameter_kinds
from advisor.model.study import Signal, Study, Trial

_MAX_P_TRAINING_FALLS = 0.05
_MAX_P_VALIDATION_RISES = 0.05
_MAX_COMPARED_POINTS = 10
"""Maximum number of points of training at which the validation metric is compared with its value at the end."""


@dataclass(frozen=True, slots=True)
class PooledRise:
    """The rise of a validation metric from one earlier point of training to the end, over all trials of a study."""

    rising_trials: tuple[Trial, ...]
    """Trials whose validation metric is worse at the end than at the earlier point, best trial first."""
    judged_count: int
    """Number of trials with enough evaluations whose validation metric at the earlier point differs from that at the end."""
    best_position: float
    """Median position of the earlier point over the rising trials, as a share of the training."""
    height: float
    """Median rise over the rising trials, in the metric's unit."""
    share: float
    """Median rise over the rising trials, as a share of the range of the trial's curve."""
    p_value: float
    """p-value of the sign test, corrected for choosing the earlier point; 1 if a training metric also rises."""
    lowest_possible_p: float
    """Smallest p-value that the sign test can reach: its p-value if the metric rises in all judged trials."""
    falling_training_metric: str | None


def measure_pooled_rise(study: Study, trials: Sequence[Trial], costs: CostCurveFunction) -> PooledRise | None:
    """Test whether the validation metric of most trials is worse at the end than at one earlier point (sign test).

    Without a change of the true metric, a trial ends higher or lower with equal probability, whatever the noise, so three
    evaluations per trial suffice for many trials. None if no trial has three, or if the metric rises in none.
    """
    curves = [(t, c) for t in trials if len(c := costs(t).finite) >= MIN_EVALUATIONS_TO_POOL]
    if not curves:
        return None
    indices = np.array([(np.arange(_MAX_COMPARED_POINTS) / _MAX_COMPARED_POINTS * (len(c) - 1)).astype(int) for _, c in curves])
    changes = np.array([c.values[-1] - c.values[i] for (_, c), i in zip(curves, indices, strict=True)])
    rising_counts, judged_counts = (changes > 0).sum(axis=0), (changes != 0).sum(axis=0)
    distinct_points = len({tuple(column) for column in indices.T})
    p_values = distinct_points * stats.binom.sf(rising_counts - 1, np.maximum(judged_counts, 1), 0.5)
    # If several points show a significant rise, report the one with the best metric value, because overfitting begins there.
    is_shown = p_values <= max(_MAX_P_VALIDATION_RISES, p_values.min())
    point = int(np.argmax(np.where(is_shown, np.median(changes, axis=0), -np.inf)))
    rising = [(*curves[i], int(indices[i, point])) for i in range(len(curves)) if changes[i, point] > 0]
    if not rising:
        return None
    train_falls, train_metric = _pooled_training_change(study, [(t, int(c.steps[i])) for t, c, i in rising])
    heights = np.array([c.values[-1] - c.values[i] for _, c, i in rising])
    return PooledRise(
        rising_trials=tuple(t for t, _, _ in rising),
        judged_count=int(judged_counts[point]),
        best_position=float(np.median([c.steps[i] / c.steps[-1] for _, c, i in rising])),
        height=float(np.median(heights)),
        share=float(np.median(heights / [np.ptp(c.values) for _, c, _ in rising])),
        p_value=min(1.0, float(p_values.min())) if train_falls else 1.0,
        lowest_possible_p=min(1.0, distinct_points * 0.5 ** float(judged_counts.max())),
        falling_training_metric=train_metric,
    )


def _pooled_training_change(study: Study, starts: Sequence[tuple[Trial, int]]) -> tuple[bool, str | None]:
    """Return (False if a training metric rises in half of the trials, name of one that falls in most trials)."""
    falling_metric: str | None = None
    for signal in (s for s in TRAINING_SIGNALS if s in study.signals):
        changes = np.array([m for t, step in starts if not np.isnan(m := _training_change(study, t, signal, step))])
        if not len(changes):
            continue
        if 2 * int((changes > 0).sum()) >= len(changes):
            return False, None
        if falling_metric is None and stats.binom.sf((changes < 0).sum() - 1, len(changes), 0.5) <= _MAX_P_TRAINING_FALLS:
            falling_metric = study.signals[signal]
    return True, falling_metric


def _training_change(study: Study, trial: Trial, signal: Signal, step: int) -> float:
    curve = study.curve(trial, signal).finite
    if signal == "train_objective" and not study.minimize:
        curve = -curve
    width = max(1, len(curve) // 10)
    index = int(np.searchsorted(curve.steps, step))
    if len(curve) < 2 or index + width > len(curve) - width:
        return float("nan")
    return float(np.mean(curve.values[-width:]) - np.mean(curve.values[index : index + width]))


def best_trial_per_combination(study: Study, ranked: Sequence[Trial]) -> list[Trial]:
    names = [n for n, p in study.searched.items() if p.role == "scientific" and not p.numeric]
    best: dict[tuple[object, ...], Trial] = {}
    for trial in ranked:
        best.setdefault(tuple(trial.params.get(n) for n in names), trial)
    return list(best.values())


def do_only_weak_settings_overfit(study: Study, overfit: Sequence[Trial], feasible: Sequence[Trial]) -> bool:
    """Return True if no trial overfits in the upper half of the range of a compared regulariser."""
    bad = {t.index for t in overfit}
    for name, parameter in study.searched.items():
        if parameter.role == "scientific" and parameter_kinds.is_regulariser(name):
            positions = study.positions(name, feasible)
            upper = {t.index for t, x in zip(feasible, positions, strict=True) if x > 0.5}
            if upper and not upper & bad:
                return True
    return False
