"""Every trial's training and validation curve, small enough to be on the page: for a picture of it, and for nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.model.space import FloatArray, IntArray, to_scale
from advisor.model.study import Signal, Study, Trial
from advisor.report.figures.scale import Limits, curve_limits, padded
from advisor.report.model import CurveSet
from advisor.report.plot_data.plotted import Sketches

LEVELS = "()*+,-./0123456789:;=?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~"
"""The characters that stand for heights, from the bottom of the axis to its top: those that neither HTML nor JSON escapes."""
NOTHING, GAP = " ", "!"
"""Stand for columns in which nothing was logged, and in which nothing of it was finite."""

CHARACTERS = 24_000
"""How many characters the curves of a study may take together, unless so many trials leave each fewer than FEWEST columns."""
FEWEST, MOST = 30, 125
"""Columns of a curve."""

MOST_TRIALS = 5_000
"""Trials that have sketches, the best ones."""

_SQUEEZED = 4
"""Ratio of the largest to the least value from which positive values stand on a logarithmic axis."""

_TRAINING: tuple[Signal, ...] = ("train_objective", "train_loss", "train_eval_loss", "valid_loss")
"""What is shown beside the objective: the first that was logged."""


def sketches(study: Study, curves: Sequence[CurveSet]) -> tuple[Sketches, ...]:
    """The objective of every trial, and its twin on the training data; `curves` say on which scale their steps stand."""
    chosen = _chosen(study)
    objective = study.spec.objective.metric
    others = [m for s in _TRAINING if (m := study.signals.get(s)) not in (None, objective)]
    metrics = [m for m in (objective, *others[:1]) if m is not None and m in study.metrics]
    columns = CHARACTERS // max(2 * len(chosen) * len(metrics), 1)
    columns = min(max(columns, FEWEST), MOST)
    log = {s.metric: s.scale == "log" for s in curves}
    made = (_sketches(study, m, chosen, columns, log=log.get(m, False)) for m in metrics)
    return tuple(s for s in made if s is not None)


def _chosen(study: Study) -> list[Trial]:
    """All trials, or of too many the best, then those that failed."""
    ranked = study.ranked()
    known = {t.index for t in ranked}
    return sorted([*ranked, *(t for t in study.trials if t.index not in known)][:MOST_TRIALS], key=lambda t: t.index)


def _sketches(study: Study, metric: str, chosen: Sequence[Trial], columns: int, *, log: bool) -> Sketches | None:
    trials, steps, values = _points(study, metric)
    if not len(steps):
        return None
    first, last = (int(steps[steps > 0].min(initial=1)) if log else 0), max(int(steps.max()), 1)
    part = np.log(np.maximum(steps, first) / first) / np.log(max(last / first, 2)) if log else steps / last
    column = np.clip((part * columns).astype(np.int64), 0, columns - 1)
    limits = _limits(study, metric)
    heights = _extremes(trials * columns + column, values, limits, (len(study.trials), columns))
    has = {t.index for t in chosen}
    return Sketches(
        metric=metric,
        columns=columns,
        first_step=first,
        last_step=max(last, first + 1),
        log_steps=log,
        low=limits.low,
        high=limits.high,
        log=limits.log,
        curves=tuple(_text(row) if i in has else None for i, row in enumerate(heights)),
        beyond=limits.beyond(values) > 0,
    )


def _points(study: Study, metric: str) -> tuple[IntArray, IntArray, FloatArray]:
    """(trial, step, value) of every logged point, the extremes of windows among them, trial after trial and step after step."""
    blocks = [b for suffix in ("", ".min", ".max") if (b := study.metrics.get(metric + suffix)) is not None]
    trials = np.concatenate([np.repeat(np.arange(len(study.trials)), np.diff(b.offsets)) for b in blocks])
    steps, values = (np.concatenate([getattr(b, name) for b in blocks]) for name in ("steps", "values"))
    if len(blocks) > 1:
        order = np.lexsort((steps, trials))
        trials, steps, values = trials[order], steps[order], values[order]
    return trials, steps, values


def _limits(study: Study, metric: str) -> Limits:
    """An axis for the curves of all trials with a result, whatever the others do.

    How trainings start would squeeze all else into a line, so the first quarter of a curve does not count. What gets better
    downwards stands on a logarithmic axis where the worst would squeeze the best.
    """
    curves = [(study.feasible[t.index], study.metric(t, metric).values) for t in study.trials]
    steady = [v[len(v) // 4 :] for fine, v in curves if fine]
    limits = curve_limits(steady, [v for _, v in curves])
    upwards = study.spec.objective.direction == "maximize"
    if limits.log or (upwards and metric in (study.spec.objective.metric, study.signals.get("train_objective"))):
        return limits
    shown = np.concatenate([v[(v >= limits.low) & (v <= limits.high)] for v in steady] or [np.empty(0)])
    least, most = shown.min(initial=np.inf), shown.max(initial=0.0)
    return padded(float(least), float(most), log=True) if 0 < _SQUEEZED * least < most else limits


def _extremes(key: IntArray, values: FloatArray, limits: Limits, shape: tuple[int, int]) -> IntArray:
    """Heights (trials, columns, 2) of the least and the largest value of each column, in the order in which they were logged.

    key, values: (n,), of each point the place trial * columns + column, which does not decrease. -1 stands for a column without a
    point, -2 for one without a finite one.
    """
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(key))))
    finite = np.isfinite(values)
    place = np.arange(len(key))
    ends = []
    for turned in (np.where(finite, values, np.inf), np.where(finite, -values, np.inf)):
        least = np.minimum.reduceat(turned, starts)
        ends.append(np.minimum.reduceat(np.where(turned == least[group], place, len(key)), starts))
    heights = np.full((shape[0] * shape[1], 2), -1, dtype=np.int64)
    for side, at in enumerate((np.minimum(*ends), np.maximum(*ends))):
        heights[key[starts], side] = np.where(np.logical_or.reduceat(finite, starts), _levels(limits, values[at]), -2)
    return heights.reshape(*shape, 2)


def _levels(limits: Limits, values: FloatArray) -> IntArray:
    """The level of each value (n,); beyond the axis, or where it cannot stand on it, that of its end."""
    low, high, at = (
        to_scale(v, "log" if limits.log else "linear") for v in (np.array(limits.low), np.array(limits.high), values)
    )
    part = np.nan_to_num((at - low) / (high - low), nan=0.0, posinf=1.0, neginf=0.0)
    return np.round(np.clip(part, 0, 1) * (len(LEVELS) - 1)).astype(np.int64)


_CODES = np.frombuffer((GAP + NOTHING + LEVELS).encode(), dtype=np.uint8)


def _text(heights: IntArray) -> str:
    """Heights (columns, 2) as text: how many a column has, then those of each column; empty where nothing was logged."""
    one = bool((heights[:, 0] == heights[:, 1]).all())
    text = _CODES[(heights[:, :1] if one else heights).ravel() + 2].tobytes().decode().rstrip(NOTHING)
    return f"{1 if one else 2}{text}" if text else ""
