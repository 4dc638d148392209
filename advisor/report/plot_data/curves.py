"""Curves reduced to screen resolution without losing spikes, and histograms of gradient norms."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.stability import clipping
from advisor.model.space import FloatArray, IntArray
from advisor.model.study import Signal, Study, Trial
from advisor.report.plot_data.model import GradientNormHistogram, MetricCurveSet, TrialCurve

CURVE_PIXEL_COLUMNS = 400
"""Number of pixel columns to which a curve is reduced."""

_NORM_BINS = 40
"""Number of bins of the histogram of gradient norms."""
_MIN_LOG_STEP_RATIO = 1000
"""The step axis is logarithmic if the ratio of the last to the first positive step is at least this."""

_MAX_STEP_GAP_SHARE = 0.2
"""A step axis is logarithmic only if no gap between consecutive logged steps exceeds this share of its length."""


def downsample_curve(
    steps: IntArray, values: FloatArray, columns: IntArray
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return (steps, values) of the first, minimum, maximum and last point of each column, in step order.

    steps, values, columns: step, value and column of each point (n,). If a column contains non-finite values, the result
    contains one None for them, so that the curve shows a gap.
    """
    if len(steps) == 0:
        return (), ()
    starts = np.flatnonzero(np.diff(columns, prepend=columns[0] - 1))
    ends = np.append(starts[1:], len(steps))
    finite = np.isfinite(values)
    low = np.where(finite, values, np.inf)
    high = np.where(finite, values, -np.inf)
    keep: set[int] = set()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        keep.update((start, end - 1))
        if end - start > 2:
            keep.add(start + int(np.argmin(low[start:end])))
            keep.add(start + int(np.argmax(high[start:end])))
            gaps = np.flatnonzero(~finite[start:end])
            keep.update((start + int(gaps[0]),) if len(gaps) else ())
    order = sorted(keep)
    return tuple(steps[order].tolist()), tuple(v if math.isfinite(v) else None for v in values[order].tolist())


_SHOWN_SIGNALS: tuple[Signal, ...] = (
    "train_loss",
    "train_eval_loss",
    "train_objective",
    "valid_loss",
    "train_chosen_logp",
    "valid_chosen_logp",
    "grad_norm",
    "learning_rate",
)
_SHOWN_POLICY_SIGNALS: tuple[Signal, ...] = (
    "policy_reward",
    "policy_kl",
    "policy_entropy",
    "groups_without_advantage",
    "grad_norm",
    "learning_rate",
)


def signals_to_show(study: Study) -> tuple[Signal, ...]:
    """Return the signals whose curves the report draws. In reinforcement learning, the signals exclude the loss, because it
    does not show how good the policy is."""
    return _SHOWN_POLICY_SIGNALS if study.has("policy_reward") else _SHOWN_SIGNALS


def make_curve_set(study: Study, metric: str, signal: Signal | None, trials: list[Trial]) -> MetricCurveSet | None:
    """Return the metric's curves of these trials for a plot; None if none of the trials logged the metric."""
    logged = [(t, *curve_with_extremes(study, t, metric)) for t in trials]
    logged = [(t, steps, values) for t, steps, values in logged if len(steps)]
    if not logged:
        return None
    every = np.unique(np.concatenate([steps for _, steps, _ in logged]))
    last, first = int(every[-1]), int(every[every > 0][0]) if every[-1] > 0 else 1
    log = last >= _MIN_LOG_STEP_RATIO * first
    if log:
        logs = np.log(every[every > 0])
        log = bool(np.diff(logs).max() <= _MAX_STEP_GAP_SHARE * (logs[-1] - logs[0]))
    curves = []
    for trial, steps, values in logged:
        part = np.log(np.maximum(steps, first) / first) / math.log(last / first) if log else steps / max(last, 1)
        reduced = downsample_curve(steps, values, (part * CURVE_PIXEL_COLUMNS).astype(np.int64))
        curves.append(TrialCurve(trial=trial.id, steps=reduced[0], values=reduced[1]))
    name = "objective" if metric == study.spec.objective.metric else signal
    return MetricCurveSet(metric=metric, signal=name, scale="log" if log else "linear", curves=tuple(curves))


def curve_with_extremes(study: Study, trial: Trial, metric: str) -> tuple[IntArray, FloatArray]:
    """Return the steps and values of a curve. If values were logged as means over windows, the minimum and maximum of each
    window are added at the step of its mean."""
    curve = study.metric(trial, metric)
    parts = [curve] + [c for suffix in (".min", ".max") if len(c := study.metric(trial, metric + suffix))]
    if len(parts) == 1:
        return curve.steps, curve.values
    steps = np.concatenate([p.steps for p in parts])
    order = np.argsort(steps, kind="stable")
    return steps[order], np.concatenate([p.values for p in parts])[order]


def gradient_norm_histogram(study: Study, trials: list[Trial]) -> GradientNormHistogram | None:
    """Return the histogram of the trials' gradient norms; None if the trials logged fewer than two usable gradient norms."""
    logged = [c.values for t in trials if len(c := study.curve(t, "grad_norm"))]
    if not logged:
        return None
    values = np.concatenate(logged)
    usable = values[np.isfinite(values) & (values > 0)]
    if len(usable) < 2:
        return None
    low, high = float(usable.min()), float(usable.max())
    log = high >= 30 * low
    if low == high:
        low, high = 0.9 * low, 1.1 * high
    edges = np.geomspace(low, high, _NORM_BINS + 1) if log else np.linspace(low, high, _NORM_BINS + 1)
    edges[0], edges[-1] = low, high
    counts, _ = np.histogram(usable, bins=edges)
    return GradientNormHistogram(
        edges=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        log=log,
        p90=float(np.quantile(usable, 0.9)),
        trials=len(logged),
        left_out=len(values) - len(usable),
        **_gradient_clipping_facts(study, trials),
    )


def _gradient_clipping_facts(study: Study, trials: list[Trial]) -> dict[str, float]:
    """Return the clipping threshold and the mean share of clipped updates; empty if the threshold is unknown or differs."""
    limits = {clipping.threshold(t) for t in trials}
    if len(limits) != 1 or not all(map(math.isfinite, limits)):
        return {}
    shares = [
        c.clipped_share
        for t in trials
        if (c := clipping.read_clipping(study, t)) is not None and math.isfinite(c.clipped_share)
    ]
    return {"clip": limits.pop(), **({"clipped": float(np.mean(shares))} if shares else {})}
