"""Builds curves from points, sorted by trial and step, without duplicates, and on one step axis for each trial."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from advisor.contract.metric_direction import words_of_metric
from advisor.model.reading import Decision
from advisor.model.space import MAX_FINITE_VALUE, FloatArray, IntArray
from advisor.model.study import CurveBlock
from advisor.model.words import clean, count, listed
from advisor.system import spill
from advisor.tracking.points.collect import are_rows_ascending
from advisor.tracking.runs import Experiment, Points
from advisor.tracking.study import axes

_MAX_USABLE_STEP = 2**53
"""Larger integers, such as nanosecond timestamps, may become equal when they are converted to 64-bit floats."""
_MAX_LISTED_METRICS = 5


@dataclass(frozen=True, slots=True)
class ExperimentCurves:
    blocks: dict[str, CurveBlock]
    start: axes.StepOffsets
    warnings: tuple[str, ...]
    summaries: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Values logged without a step after the end of a curve, by metric and trial."""
    decisions: tuple[Decision, ...] = ()


def build_curves(experiment: Experiment, indices: IntArray) -> ExperimentCurves:
    """Return the curves of the runs with the given indices, shape (trials,), and warnings about unusable or repeated steps."""
    trial_of = np.full(len(experiment.runs), -1, dtype=np.int64)
    trial_of[indices] = np.arange(len(indices))
    starts = np.array([math.nan if (s := experiment.runs[i].started) is None else s for i in indices])
    in_memory = experiment.fits_in_memory
    by_metric = {m: _curves_of_metric(points, trial_of, starts, fits=in_memory) for m, points in experiment.points.items()}
    summaries = {metric: part.summaries for metric, part in by_metric.items() if part.summaries}
    has_no_steps = [metric for metric, part in by_metric.items() if part.has_no_steps]
    # TRL logs the times of several calls at the same step, but no rule reads these times.
    repeated = {m: part for m, part in by_metric.items() if part.dropped_points and "time" not in words_of_metric(m)}
    counts = ((m, part.dropped_points, part.dropped_points + len(part.curve_block.steps)) for m, part in repeated.items())
    repeated_steps = [f"{m} ({dropped:,} of {total:,} values)" for m, dropped, total in counts]
    blocks, start = axes.remove_step_offsets({metric: part.curve_block for metric, part in by_metric.items()}, len(indices))
    aligned, by_epoch = axes.convert_epochs_to_steps(blocks)
    warnings = []
    if has_no_steps:
        names = ", ".join(sorted(has_no_steps)[:_MAX_LISTED_METRICS])
        warnings.append(f"Logged without usable steps, so the order of logging replaces the steps: {names}.")
    if repeated_steps:
        names = listed(repeated_steps, _MAX_LISTED_METRICS)
        warnings.append(f"Logged more than once at the same step, so only the last value of each step counts: {names}.")
    warnings += [*by_epoch, *axes.mixed_unit_warnings(aligned)]
    decisions = list(start.decisions())
    if summaries:
        names = listed((clean(m) for m in sorted(summaries)), _MAX_LISTED_METRICS)
        trials = count(len(set().union(*summaries.values())), "trial")
        text = f"{trials} logged {names} once more without a step at the end: a summary, not a point of the curve."
        decisions.append(Decision(topic="steps", text=text))
    return ExperimentCurves(aligned, start, tuple(warnings), summaries, tuple(decisions))


class _MetricCurves(NamedTuple):
    curve_block: CurveBlock
    has_no_steps: bool
    dropped_points: int
    summaries: dict[int, float]
    """Value that each trial logged without a step after the end of its curve."""


def _curves_of_metric(points: Points, trial_of_run: IntArray, start_times: FloatArray, *, fits: bool) -> _MetricCurves:
    trials, steps, values, times = _sort_points(points, trial_of_run)
    stepless_points = _stepless_points(trials, steps, times)
    summaries = dict(zip(trials[stepless_points].tolist(), values[stepless_points].tolist(), strict=True))
    if len(stepless_points):
        trials, steps = np.delete(trials, stepless_points), np.delete(steps, stepless_points)
        values, times = np.delete(values, stepless_points), np.delete(times, stepless_points)
    # Steps are unusable if a step is too large, or if all steps are equal although there are more points than trials.
    low, high = int(steps.min(initial=0)), int(steps.max(initial=0))
    are_steps_equal = len(steps) > len(start_times) and bool((steps == steps[0]).all())
    has_no_steps = max(-low, high) > _MAX_USABLE_STEP or are_steps_equal
    dropped_count = 0
    if has_no_steps:
        steps = np.arange(len(steps), dtype=np.int64) - np.searchsorted(trials, trials)
    elif not are_rows_ascending(trials, steps):
        is_last = np.append((trials[1:] != trials[:-1]) | (steps[1:] != steps[:-1]), True)
        # Loggers repeat equal values, such as the epoch. Only different values are a loss.
        dropped_count = int(np.sum(~is_last[:-1] & (values[:-1] != values[1:])))
        trials, steps, values, times = trials[is_last], steps[is_last], values[is_last], times[is_last]
    if (huge := np.abs(values) > MAX_FINITE_VALUE).any():
        values = np.where(huge, np.copysign(np.inf, values), values)
    counts = np.bincount(trials, minlength=len(start_times))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    steps, values, times = spill.move_columns_to_file((steps, values, times - start_times[trials]), fits=fits)
    block = CurveBlock(steps, values, times, offsets)
    return _MetricCurves(block, has_no_steps, dropped_count, summaries)


def _stepless_points(trials: IntArray, steps: IntArray, times: FloatArray) -> IntArray:
    """Return the indices of points at step 0 that were logged after all later steps of their trial, as MLflow stores values
    without a step. The input arrays must be sorted by trial, step and time."""
    zeros = np.flatnonzero(steps == 0)
    ends = np.searchsorted(trials, trials[zeros], "right")
    late_points = []
    for i, end in zip(*(c[(steps[ends - 1] > 0) & (times[zeros] >= times[ends - 1])] for c in (zeros, ends)), strict=True):
        start = i + np.searchsorted(steps[i:end], 1)
        trial_times = times[start:end]
        if times[i] >= trial_times.max() and times[i] > trial_times.min():
            late_points.append(i)
    return np.array(late_points, dtype=np.int64)


def _sort_points(points: Points, trial_of_run: IntArray) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    trials = trial_of_run[points.runs]
    steps, values, times = points.steps, points.values, points.times
    if not (is_trial := trials >= 0).all():
        trials, steps, values, times = trials[is_trial], steps[is_trial], values[is_trial], times[is_trial]
    if are_rows_ascending(trials, steps):  # the rows are already sorted in nearly all experiments
        return trials, steps, values, times
    order = np.lexsort((times, steps, trials))
    trials, steps, values, times = trials[order], steps[order], values[order], times[order]
    new = np.ones(len(trials), dtype=np.bool_)
    new[1:] = np.logical_or.reduce([(b := c.view(np.int64))[1:] != b[:-1] for c in (trials, steps, times, values)])
    return trials[new], steps[new], values[new], times[new]
