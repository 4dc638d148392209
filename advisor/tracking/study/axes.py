"""Converts the steps of each trial's metrics to one common axis, which starts at 0.

Two kinds of steps are converted:
- If steps do not start near 0 (but at 100,000 or a Unix time), they are counted from the trial's start.
- Epochs become optimizer steps in trials that logged some metrics by epoch and others by step. Training loops and frameworks
  often log the loss at every step and validation metrics at `step=epoch`. Only timestamps distinguish epoch 3 from step 3: step
  3 is logged much earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from advisor.model.reading import Decision
from advisor.model.space import FloatArray, IntArray, Params, as_number, is_number_of_epochs
from advisor.model.study import Curve, CurveBlock, CurveBlocks
from advisor.model.words import first_few

_MIN_COMPARED_POINTS = 3
"""Minimum number of points in a curve for comparing its timestamps with those of other curves."""
_MIN_EPOCH_STEPS = 1.5
"""Minimum optimizer steps between logged steps, by their times, at which the logged steps are epochs."""
_MIN_STEP_INTERVAL = 5
"""Minimum distance at which logged steps are optimizer steps if other trials log the metric by epoch."""
_MAX_LISTED_METRICS = 5
_MIN_STEP_OFFSET = 0.25
"""Minimum first step that is an offset, as a share of a trial's length; first evaluations come earlier."""
MIN_UNIX_TIME_S = 10**9
"""Minimum first step that counts as a time: the seconds from 1970 to 2001."""
_MIN_UNIX_TIME_MS = 10**12
_PLANNED_LENGTH_DIVISOR = 5
"""Planned lengths of training are usually multiples of this number of steps."""


@dataclass(frozen=True, slots=True)
class StepOffsets:
    """The first logged steps of trials whose steps do not start near 0."""

    steps: IntArray
    """Offset of each trial, shape (trials,)."""
    unit: Literal["step", "second", "millisecond"] = "step"

    def decisions(self) -> tuple[Decision, ...]:
        if not self.steps.any():
            return ()
        low, high = int(self.steps[self.steps > 0].min()), int(self.steps.max())
        range_text = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        text = f"The logged steps begin at {range_text}. Lengths and positions in training are counted from the first step."
        if self.unit != "step":
            text = f"The logged steps are times. They are counted in {self.unit}s from the start of each trial."
            text += " Log the number of the optimizer step instead."
        return (Decision(topic="steps", text=text),)


def remove_step_offsets(blocks: CurveBlocks, trials: int) -> tuple[dict[str, CurveBlock], StepOffsets]:
    """If the logged steps of all trials have an offset, return the curves with steps counted from the start of each trial."""
    first, last, gap = np.full(trials, np.inf), np.full(trials, -np.inf), np.full(trials, np.inf)
    for block in blocks.values():
        counts = np.diff(block.offsets)
        indices = np.flatnonzero(counts >= 2)
        first_steps = block.steps[block.offsets[:-1][indices]].astype(np.float64)
        end = block.steps[block.offsets[1:][indices] - 1].astype(np.float64)
        first[indices], last[indices] = np.minimum(first[indices], first_steps), np.maximum(last[indices], end)
        gap[indices] = np.minimum(gap[indices], (end - first_steps) / (counts[indices] - 1))
    is_known = np.isfinite(first)
    if not is_known.any() or (first[is_known] - gap[is_known] < _MIN_STEP_OFFSET * (last[is_known] - first[is_known])).any():
        return dict(blocks), StepOffsets(np.zeros(trials, dtype=np.int64))
    offsets = np.zeros(trials, dtype=np.int64)
    offsets[is_known] = np.floor(first[is_known] - gap[is_known]).astype(np.int64)
    shifted_blocks = dict(blocks)
    for name, block in blocks.items():
        if ((counts := np.diff(block.offsets)) >= 2).any():
            shifted_blocks[name] = replace(block, steps=np.maximum(block.steps - np.repeat(offsets, counts), 0))
    earliest_step = float(first[is_known].min())
    time_unit: Literal["second", "millisecond"] = "second" if earliest_step < _MIN_UNIX_TIME_MS else "millisecond"
    return shifted_blocks, StepOffsets(offsets, "step" if earliest_step < MIN_UNIX_TIME_S else time_unit)


def convert_epochs_to_steps(blocks: CurveBlocks) -> tuple[dict[str, CurveBlock], list[str]]:
    """Replace epochs by the optimizer steps at which they ended. Return the curves, and a warning about these metrics."""
    last = {name: int(block.steps.max()) for name, block in blocks.items() if len(block.steps)}
    if not last:
        return dict(blocks), []
    reference = max(last, key=lambda name: (last[name], len(blocks[name].steps), name))
    candidates = [name for name in last if _has_consecutive_steps(blocks[name]) and 2 * (last[name] + 1) <= last[reference]]
    if not candidates:
        return dict(blocks), []
    steps = {name: blocks[name].steps.copy() for name in candidates}
    first_step_number = _first_step_number(blocks[reference])
    names: set[str] = set()
    lengths: list[float] = []
    for trial in range(len(blocks[reference].offsets) - 1):
        clock = blocks[reference].curve(trial)
        found = {name: _steps_per_epoch(blocks[name].curve(trial), clock, first_step_number) for name in candidates}
        by_epoch = {name: steps_per_epoch for name, steps_per_epoch in found.items() if steps_per_epoch is not None}
        if not by_epoch:
            continue
        length = float(np.median(list(by_epoch.values())))
        lengths.append(length)
        names |= by_epoch.keys()
        for name in by_epoch:
            start, end = blocks[name].offsets[trial : trial + 2]
            epochs = blocks[name].steps[start:end] - blocks[name].steps[start] + 1
            steps[name][start:end] = np.rint(epochs * length).astype(np.int64) - 1 + first_step_number
    if not names:
        return dict(blocks), []
    low, high = min(lengths), max(lengths)
    per_epoch = f"{low:.4g}" if high - low < 0.05 * high else f"{low:.4g} to {high:.4g}"
    warning = (
        f"Logged by epoch, and placed at the steps of {reference} at which the epochs ended, about {per_epoch} steps an epoch by "
        f"their times: {first_few(sorted(names), _MAX_LISTED_METRICS)}."
    )
    return {name: replace(block, steps=steps[name]) if name in names else block for name, block in blocks.items()}, [warning]


def _has_consecutive_steps(block: CurveBlock) -> bool:
    if not len(block.steps):
        return False
    first_indices = block.offsets[:-1][np.diff(block.offsets) > 0]
    is_later_point = np.ones(len(block.steps), dtype=np.bool_)
    is_later_point[first_indices] = False
    is_unit_step = np.diff(block.steps, prepend=block.steps[:1])[is_later_point] == 1
    return bool(is_unit_step.all() and (block.steps[first_indices] <= 1).all())


def _first_step_number(block: CurveBlock) -> int:
    """Return the number of the first step: 1 if the logged steps are 5, 10, 15; 0 if they are 0, 5, 10 or 4, 9, 14."""
    curve = next((c for i in range(len(block.offsets) - 1) if len(c := block.curve(i)) > 1), None)
    if curve is None or curve.steps[0] == 0:
        return 0
    return int(curve.steps[0] % (curve.steps[1] - curve.steps[0]) == 0)


def _steps_per_epoch(curve: Curve, clock: Curve, first: int) -> float | None:
    """Return the steps per epoch if `curve` is logged by epoch, unlike `clock`, or None if it may be logged by step."""
    if min(len(curve), len(clock)) < _MIN_COMPARED_POINTS:
        return None
    if not (_are_times_increasing(clock.times) and _are_times_increasing(curve.times)):
        return None
    # Steps are interpolated at the times of the curve, and extrapolated by at most one logging interval of the clock.
    interval = float(np.median(np.diff(clock.steps)))
    steps_per_second = (clock.steps[-1] - clock.steps[0]) / (clock.times[-1] - clock.times[0])
    extrapolated_steps = np.clip((curve.times - clock.times[-1]) * steps_per_second, 0.0, interval)
    completed_steps = np.interp(curve.times, clock.times, clock.steps.astype(np.float64)) + extrapolated_steps + 1 - first
    epochs = (curve.steps - curve.steps[0] + 1).astype(np.float64)
    if not (np.median(completed_steps / epochs) >= _MIN_EPOCH_STEPS and completed_steps[-1] >= _MIN_EPOCH_STEPS * epochs[-1]):
        return None
    length = float(epochs @ completed_steps / (epochs @ epochs))
    total_steps = float(clock.steps[-1]) + (interval if clock.steps[0] == 0 else 1 - first)
    exact_ratio = total_steps / epochs[-1]  # exact if the training ended at the end of an epoch
    return exact_ratio if abs(total_steps - length * epochs[-1]) <= max(interval, 0.03 * total_steps) else length


def _are_times_increasing(times: FloatArray) -> bool:
    return bool(np.isfinite(times).all() and times[-1] > times[0] and (np.diff(times) >= 0).all())


def mixed_unit_warnings(blocks: CurveBlocks) -> list[str]:
    """Return a warning about metrics that some trials log by epoch (consecutive integers from 0 or 1) and others, with similar
    numbers of points, by step (at least `_MIN_STEP_INTERVAL` apart)."""
    mixed = []
    for name, block in sorted(blocks.items()):
        counts = np.diff(block.offsets)
        epochs, strides = [], []
        for trial in np.flatnonzero(counts >= _MIN_COMPARED_POINTS):
            steps = block.curve(int(trial)).steps
            gap = float(np.median(np.diff(steps)))
            if gap == 1 and steps[0] <= 1:
                epochs.append(len(steps))
            elif gap >= _MIN_STEP_INTERVAL:
                strides.append(len(steps))
        if epochs and strides and 0.5 <= np.median(epochs) / np.median(strides) <= 2:
            mixed.append(f"{name} ({len(epochs)} trials by epoch, {len(strides)} by step)")
    text = "Logged by epoch in some trials and by step in others, so steps cannot be compared"
    return [f"{text}: {first_few(mixed, _MAX_LISTED_METRICS)}."] if mixed else []


def last_steps(blocks: CurveBlocks) -> IntArray:
    """Return the last logged step of any metric in each trial, shape (trials,); -1 without points."""
    last_of_trials = np.full(len(next(iter(blocks.values())).offsets) - 1, -1, dtype=np.int64)
    for block in blocks.values():
        has_points = np.diff(block.offsets) > 0
        last_of_trials[has_points] = np.maximum(last_of_trials[has_points], block.steps[block.offsets[1:][has_points] - 1])
    return last_of_trials


def are_steps_epochs(last_steps: IntArray, params: Sequence[Params]) -> bool:
    """Return whether the last step of a trial, and no later one, equals its number of epochs; others may end earlier."""
    remaining_epochs = (planned_epochs(params) - last_steps)[last_steps >= 1]
    return bool(np.isin(remaining_epochs, (0, 1)).any() and (remaining_epochs >= 0).all())


def planned_epochs(params: Sequence[Params]) -> FloatArray:
    """Return the number of epochs that each trial's parameters state, shape (trials,); -9 if unknown."""
    return np.array([next((as_number(v) for n, v in p.items() if is_number_of_epochs(n)), -9.0) for p in params])


def curve_length(curve: Curve) -> int:
    """Return the steps of a non-empty curve: 200 if they are 0, ..., 199, or 0 to 200, as step 0 precedes the training."""
    end = int(curve.steps[-1])
    from_zero = len(curve) > 1 and curve.steps[0] == 0 and end + 1 == len(curve)
    return end + 1 if from_zero and end % _PLANNED_LENGTH_DIVISOR and not (end + 1) % _PLANNED_LENGTH_DIVISOR else end
