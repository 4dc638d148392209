"""Curves reduced to screen resolution without losing spikes, and histograms of gradient norms."""

from __future__ import annotations

import math

import numpy as np

from advisor.computed.stability import clipping
from advisor.model.space import FloatArray, IntArray
from advisor.model.study import Signal, Study, Trial
from advisor.report.plot_data.model import GradientNormHistogram, MetricCurveSet, TrialCurve

CURVE_PIXEL_COLUMNS = 400

_GRADIENT_NORM_BINS = 40
_MIN_LOG_STEP_RATIO = 1000
"""The step axis is logarithmic if the ratio of the last to the first positive step is at least this."""

_MAX_STEP_GAP_SHARE = 0.2
"""A step axis is logarithmic only if no gap between consecutive logged steps exceeds this share of the axis."""


def downsample_curve(
    steps: IntArray, values: FloatArray, columns: IntArray
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return (steps, values) of the first, minimum, maximum and last point of each column, in step order, and one None for the
    non-finite values of a column. steps, values, columns: arrays (n,)."""
    if len(steps) == 0:
        return (), ()
    column_starts = np.flatnonzero(np.diff(columns, prepend=columns[0] - 1))
    column_ends = np.append(column_starts[1:], len(steps))
    is_finite = np.isfinite(values)
    low = np.where(is_finite, values, np.inf)
    values_for_max = np.where(is_finite, values, -np.inf)
    kept_indices: set[int] = set()
    for start, end in zip(column_starts.tolist(), column_ends.tolist(), strict=True):
        kept_indices.update((start, end - 1))
        if end - start > 2:
            kept_indices.add(start + int(np.argmin(low[start:end])))
            kept_indices.add(start + int(np.argmax(values_for_max[start:end])))
            gap_indices = np.flatnonzero(~is_finite[start:end])
            kept_indices.update((start + int(gap_indices[0]),) if len(gap_indices) else ())
    kept_order = sorted(kept_indices)
    return tuple(steps[kept_order].tolist()), tuple(v if math.isfinite(v) else None for v in values[kept_order].tolist())


_LOSS_SIGNALS: tuple[Signal, ...] = ("train_loss", "train_eval_loss", "train_objective", "valid_loss")
_PREFERENCE_SIGNALS: tuple[Signal, ...] = ("train_chosen_logp", "valid_chosen_logp")
_POLICY_SIGNALS: tuple[Signal, ...] = ("policy_reward", "policy_kl", "policy_entropy", "groups_without_advantage")
_STEP_SIGNALS: tuple[Signal, ...] = ("grad_norm", "learning_rate")


def signals_to_show(study: Study) -> tuple[Signal, ...]:
    """Return the signals whose curves the report draws. A policy's loss does not show how good the policy is."""
    own_signals = _POLICY_SIGNALS if study.has("policy_reward") else (*_LOSS_SIGNALS, *_PREFERENCE_SIGNALS)
    return (*own_signals, *_STEP_SIGNALS)


def make_curve_set(study: Study, metric: str, signal: Signal | None, trials: list[Trial]) -> MetricCurveSet | None:
    logged_curves = [(t, *curve_with_extremes(study, t, metric)) for t in trials]
    logged_curves = [(t, steps, values) for t, steps, values in logged_curves if len(steps)]
    if not logged_curves:
        return None
    all_steps = np.unique(np.concatenate([steps for _, steps, _ in logged_curves]))
    last, first = int(all_steps[-1]), int(all_steps[all_steps > 0][0]) if all_steps[-1] > 0 else 1
    log = last >= _MIN_LOG_STEP_RATIO * first
    if log:
        log_steps = np.log(all_steps[all_steps > 0])
        log = bool(np.diff(log_steps).max() <= _MAX_STEP_GAP_SHARE * (log_steps[-1] - log_steps[0]))
    curves = []
    for trial, steps, values in logged_curves:
        axis_share = np.log(np.maximum(steps, first) / first) / math.log(last / first) if log else steps / max(last, 1)
        downsampled = downsample_curve(steps, values, (axis_share * CURVE_PIXEL_COLUMNS).astype(np.int64))
        curves.append(TrialCurve(trial=trial.id, steps=downsampled[0], values=downsampled[1]))
    name = "objective" if metric == study.spec.objective.metric else signal
    return MetricCurveSet(metric=metric, signal=name, scale="log" if log else "linear", curves=tuple(curves))


def curve_with_extremes(study: Study, trial: Trial, metric: str) -> tuple[IntArray, FloatArray]:
    """Return (steps, values) of a curve. Minima and maxima that were logged for windows are added at the steps of the means."""
    curve = study.metric(trial, metric)
    curves = [curve] + [c for suffix in (".min", ".max") if len(c := study.metric(trial, metric + suffix))]
    if len(curves) == 1:
        return curve.steps, curve.values
    steps = np.concatenate([p.steps for p in curves])
    step_order = np.argsort(steps, kind="stable")
    return steps[step_order], np.concatenate([p.values for p in curves])[step_order]


def gradient_norm_histogram(study: Study, trials: list[Trial]) -> GradientNormHistogram | None:
    logged_norms = [c.values for t in trials if len(c := study.curve(t, "grad_norm"))]
    if not logged_norms:
        return None
    norms = np.concatenate(logged_norms)
    positive_norms = norms[np.isfinite(norms) & (norms > 0)]
    if len(positive_norms) < 2:
        return None
    low, high = float(positive_norms.min()), float(positive_norms.max())
    log = high >= 30 * low
    if low == high:
        low, high = 0.9 * low, 1.1 * high
    bin_edges = np.geomspace(low, high, _GRADIENT_NORM_BINS + 1) if log else np.linspace(low, high, _GRADIENT_NORM_BINS + 1)
    bin_edges[0], bin_edges[-1] = low, high
    counts, _ = np.histogram(positive_norms, bins=bin_edges)
    return GradientNormHistogram(
        edges=tuple(bin_edges.tolist()),
        counts=tuple(counts.tolist()),
        log=log,
        p90=float(np.quantile(positive_norms, 0.9)),
        trials=len(logged_norms),
        omitted_count=len(norms) - len(positive_norms),
        **_gradient_clipping_facts(study, trials),
    )


def _gradient_clipping_facts(study: Study, trials: list[Trial]) -> dict[str, float]:
    """Return the clipping threshold and the mean share of clipped updates; empty if the threshold is unknown or differs."""
    thresholds = {clipping.clipping_threshold(t) for t in trials}
    if len(thresholds) != 1 or not all(map(math.isfinite, thresholds)):
        return {}
    clippings = (clipping.read_clipping(study, t) for t in trials)
    clipped_shares = [c.clipped_share for c in clippings if c is not None and math.isfinite(c.clipped_share)]
    facts = {"clipping_threshold": thresholds.pop()}
    return facts | ({"clipped_share": float(np.mean(clipped_shares))} if clipped_shares else {})
