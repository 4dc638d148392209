"""The training and validation curve of every trial, encoded as a short text that the page's script decodes and draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.model.space import FloatArray, IntArray, transform_to_scale
from advisor.model.study import Signal, Study
from advisor.report.plot_data.model import EncodedCurves, MetricCurveSet
from advisor.report.plot_data.scale import AxisLimits, curve_axis_limits, padded_axis_limits

CURVE_HEIGHT_CHARACTERS = "()*+,-./0123456789:;=?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~"
"""Characters for heights, from bottom to top. HTML and JSON escape none of these characters."""
EMPTY_CHARACTER, GAP_CHARACTER = " ", "!"
"""EMPTY_CHARACTER marks a column without logged values; GAP_CHARACTER marks a column whose logged values are all not finite."""

MAX_CURVE_CHARS = 24_000
"""Maximum total characters of a study's curves. Many trials with MIN_COLUMNS columns each may need more."""
MIN_COLUMNS, MAX_COLUMNS = 30, 125

MAX_TRIALS_WITH_CURVES = 5_000
"""Maximum number of trials whose curves are encoded. The best trials are chosen."""

_MIN_LOG_AXIS_RATIO = 4
"""The vertical axis is logarithmic if the ratio of the largest to the smallest visible value is at least this."""

_TRAINING_SIGNALS: tuple[Signal, ...] = ("policy_reward", "train_objective", "train_loss", "train_eval_loss", "valid_loss")
"""Signals to show next to the objective, in order of preference. Only the first logged signal is shown."""


def encode_trial_curves(study: Study, curves: Sequence[MetricCurveSet]) -> tuple[EncodedCurves, ...]:
    """Return every trial's curves of the objective and one training metric. curves: the figures' curve sets, for their step
    scales."""
    trials = set(list(dict.fromkeys(t.index for t in (*study.ranked(), *study.trials)))[:MAX_TRIALS_WITH_CURVES])
    objective = study.spec.objective.metric
    signal_metrics = [m for s in _TRAINING_SIGNALS if (m := study.signals.get(s)) not in (None, objective)]
    metrics = [m for m in (objective, *signal_metrics[:1]) if m is not None and m in study.metrics]
    columns = MAX_CURVE_CHARS // max(2 * len(trials) * len(metrics), 1)
    columns = min(max(columns, MIN_COLUMNS), MAX_COLUMNS)
    log = {s.metric: s.scale == "log" for s in curves}
    encoded_metrics = (_encode_metric_curves(study, m, trials, columns, log=log.get(m, False)) for m in metrics)
    return tuple(c for c in encoded_metrics if c is not None)


def _encode_metric_curves(study: Study, metric: str, shown: set[int], columns: int, *, log: bool) -> EncodedCurves | None:
    trials, steps, values = _points_with_extremes(study, metric)
    if not len(steps):
        return None
    first, last = (int(steps[steps > 0].min(initial=1)) if log else 0), max(int(steps.max()), 1)
    axis_share = np.log(np.maximum(steps, first) / first) / np.log(max(last / first, 2)) if log else steps / last
    column = np.clip((axis_share * columns).astype(np.int64), 0, columns - 1)
    limits = _value_axis_limits(study, metric)
    column_levels = _column_extreme_levels(trials * columns + column, values, limits, (len(study.trials), columns))
    return EncodedCurves(
        metric=metric,
        columns=columns,
        first_step=first,
        last_step=max(last, first + 1),
        log_steps=log,
        low=limits.low,
        high=limits.high,
        log=limits.log,
        curves=tuple(_encode_curve(row) if i in shown else None for i, row in enumerate(column_levels)),
        has_values_outside=limits.count_values_outside(values) > 0,
    )


def _points_with_extremes(study: Study, metric: str) -> tuple[IntArray, IntArray, FloatArray]:
    """Return arrays (trial, step, value) of every point and of every logged minimum and maximum, sorted by trial and step."""
    blocks = [b for suffix in ("", ".min", ".max") if (b := study.metrics.get(metric + suffix)) is not None]
    trials = np.concatenate([np.repeat(np.arange(len(study.trials)), np.diff(b.offsets)) for b in blocks])
    steps, values = (np.concatenate([getattr(b, name) for b in blocks]) for name in ("steps", "values"))
    if len(blocks) > 1:
        point_order = np.lexsort((steps, trials))
        trials, steps, values = trials[point_order], steps[point_order], values[point_order]
    return trials, steps, values


def _value_axis_limits(study: Study, metric: str) -> AxisLimits:
    """Return axis limits for the last three quarters of the curves of trials with a result. For a minimized metric, the axis is
    logarithmic if the worst values would make differences between the best values invisible."""
    curves = [(study.feasible[t.index], study.metric(t, metric).values) for t in study.trials]
    steady_curves = [v[len(v) // 4 :] for fine, v in curves if fine]
    limits = curve_axis_limits(steady_curves, [v for _, v in curves])
    maximize = study.spec.objective.direction == "maximize"
    if limits.log or (maximize and metric in (study.spec.objective.metric, study.signals.get("train_objective"))):
        return limits
    visible_values = np.concatenate([v[(v >= limits.low) & (v <= limits.high)] for v in steady_curves] or [np.empty(0)])
    low, high = visible_values.min(initial=np.inf), visible_values.max(initial=0.0)
    return padded_axis_limits(float(low), float(high), log=True) if 0 < _MIN_LOG_AXIS_RATIO * low < high else limits


def _column_extreme_levels(key: IntArray, values: FloatArray, limits: AxisLimits, shape: tuple[int, int]) -> IntArray:
    """Return the levels (trials, columns, 2) of each column's minimum and maximum, in logged order: -1 in a column without points,
    and -2 in a column without finite points. key: trial * columns + column of each point (n,), non-decreasing. values: values of
    the points (n,)."""
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    group_of_point = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(key))))
    finite = np.isfinite(values)
    indices = np.arange(len(key))
    extreme_indices = []
    for signed in (np.where(finite, values, np.inf), np.where(finite, -values, np.inf)):
        group_minima = np.minimum.reduceat(signed, starts)
        extreme_indices.append(np.minimum.reduceat(np.where(signed == group_minima[group_of_point], indices, len(key)), starts))
    levels = np.full((shape[0] * shape[1], 2), -1, dtype=np.int64)
    for side, at in enumerate((np.minimum(*extreme_indices), np.maximum(*extreme_indices))):
        levels[key[starts], side] = np.where(np.logical_or.reduceat(finite, starts), _height_levels(limits, values[at]), -2)
    return levels.reshape(*shape, 2)


def _height_levels(limits: AxisLimits, values: FloatArray) -> IntArray:
    """Return the level (height as an integer) of each value (n,); values outside the axis are clipped to its ends."""
    low, high, at = (
        transform_to_scale(v, "log" if limits.log else "linear") for v in (np.array(limits.low), np.array(limits.high), values)
    )
    axis_share = np.nan_to_num((at - low) / (high - low), nan=0.0, posinf=1.0, neginf=0.0)
    return np.round(np.clip(axis_share, 0, 1) * (len(CURVE_HEIGHT_CHARACTERS) - 1)).astype(np.int64)


_HEIGHT_CHARACTER_CODES = np.frombuffer((GAP_CHARACTER + EMPTY_CHARACTER + CURVE_HEIGHT_CHARACTERS).encode(), dtype=np.uint8)


def _encode_curve(heights: IntArray) -> str:
    """Encode levels (columns, 2) as text: levels per column (1 or 2), then a character per level; "" for a curve without values."""
    one = bool((heights[:, 0] == heights[:, 1]).all())
    levels = (heights[:, :1] if one else heights).ravel()
    encoded = _HEIGHT_CHARACTER_CODES[levels + 2].tobytes().decode().rstrip(EMPTY_CHARACTER)
    return f"{1 if one else 2}{encoded}" if encoded else ""
