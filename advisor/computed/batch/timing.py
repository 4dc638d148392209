"""Measures the duration of training steps, split into computation, waiting for data, and other work of the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.computed import computed
from advisor.model.space import FloatArray, IntArray
from advisor.model.study import Curve, Study, Trial
from advisor.stats.estimates import Estimate, ratio_of_sums

MIN_TIMED_STEPS = 20
"""Minimum number of logged steps, after the first `SKIPPED_FIRST_STEPS`, to estimate shares of step time."""
SKIPPED_FIRST_STEPS = 10
"""Number of logged steps to skip at the start of training, when data workers start and kernels are compiled."""
MAX_TIMED_TRIALS = 64
"""Maximum number of trials whose step times are read; step time hardly depends on the hyperparameters that a study varies."""
MAX_DATA_WAIT_SHARE = 0.25
"""Maximum share of step time that a healthy training waits for data; small networks on a CPU have 0.18."""
MAX_HOST_TIME_SHARE = 0.2
"""Maximum share of step time in which the device idles although the next batch is ready. Our choice."""
_MAX_STEP_DURATION_RATIO = 3.0
"""Maximum duration of a training step, as a multiple of the median step duration. Longer steps contain other work."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times of one trial, without the first `SKIPPED_FIRST_STEPS` logged steps."""

    trial: Trial
    mean_seconds: float
    data_wait_share: Estimate
    """Share of step time in which the training waits for data; on a GPU, only waits count in which the GPU is idle."""
    share_of_longest_waits: float
    """Share of the total waiting time in the 10 % of steps with the longest waits; 0.1 if all steps wait equally long."""
    gpu_blocked_share: Estimate | None
    """Share of step time in which a GPU neither computed nor waited for data; None if not timed."""


@computed
def read_step_times(study: Study, trial: Trial) -> StepTimes | None:
    """Return the trial's step times; None if step or waiting times were not logged often enough."""
    step, wait = study.curve(trial, "step_time").finite, study.curve(trial, "data_wait").finite
    steps = np.intersect1d(step.steps, wait.steps, assume_unique=True)
    compute_times = study.curve(trial, "compute_time").finite
    is_compute_timed = ran_on_gpu(trial) and len(compute_times) >= MIN_TIMED_STEPS
    if is_compute_timed:
        steps = np.intersect1d(steps, compute_times.steps, assume_unique=True)
    if len(steps) < SKIPPED_FIRST_STEPS + MIN_TIMED_STEPS:
        return None
    # Each logged value is a mean over a logging window, so weight it by the number of steps in its window.
    window_steps = np.diff(steps, prepend=steps[:1] - 1)[SKIPPED_FIRST_STEPS:].astype(np.float64)
    steps = steps[SKIPPED_FIRST_STEPS:]
    step_times, wait_times = (_values_at_steps(steps, c) for c in (step, wait))
    if not step_times.sum() > 0:
        return None
    gpu_blocked_share = None
    if is_compute_timed:
        idle_times = np.maximum(step_times - _values_at_steps(steps, compute_times), 0.0)
        wait_times = np.minimum(wait_times, idle_times)
        usual = step_times <= _MAX_STEP_DURATION_RATIO * np.median(step_times)
        gpu_blocked_share = ratio_of_sums((idle_times - wait_times)[usual], step_times[usual], window_steps[usual])
    wait_times = np.minimum(wait_times, step_times)
    longest_waits = np.sort(wait_times)[-math.ceil(len(wait_times) / 10) :]
    return StepTimes(
        trial=trial,
        mean_seconds=float(np.average(step_times, weights=window_steps)),
        data_wait_share=ratio_of_sums(wait_times, step_times, window_steps),
        share_of_longest_waits=float(longest_waits.sum() / max(wait_times.sum(), 1e-300)),
        gpu_blocked_share=gpu_blocked_share,
    )


def step_times_of_study(study: Study) -> list[StepTimes]:
    """Return the step times of at most `MAX_TIMED_TRIALS` ended trials, in the order of the trials."""
    ended_trials = [t for t in study.trials if study.ended[t.index]][:MAX_TIMED_TRIALS]
    return [times for t in ended_trials if (times := read_step_times(study, t)) is not None]


@computed
def evaluation_time_share(study: Study) -> float:
    """Return the share of the time between a trial's first and last evaluation in which it evaluates or saves checkpoints and
    does not train. Median over trials; NaN if unknown."""
    evaluation_shares = []
    for times in step_times_of_study(study) if study.unit == "step" else ():
        curve = study.cost_curve(times.trial)
        timed_indices = np.flatnonzero(np.isfinite(curve.times))
        if len(timed_indices) < 2:
            continue
        first, last = timed_indices[0], timed_indices[-1]
        steps, seconds = curve.steps[last] - curve.steps[first], curve.times[last] - curve.times[first]
        if seconds > 0:
            evaluation_shares.append(min(max(1 - float(steps) * times.mean_seconds / float(seconds), 0.0), 1.0))
    return float(np.median(evaluation_shares)) if evaluation_shares else math.nan


def ratios_above_limit(ratios: Sequence[Estimate], limit: float, false_alarms: float) -> list[int]:
    """Return the indices of the ratios that exceed `limit` at significance level `false_alarms`; empty if at most half do."""
    indices_above_limit = [i for i, r in enumerate(ratios) if r.chance_above(limit) >= 1 - false_alarms]
    return indices_above_limit if 2 * len(indices_above_limit) > len(ratios) else []


def ran_on_gpu(trial: Trial) -> bool:
    """Return True if the trial ran on a CUDA device."""
    return trial.facts.get("device", "").startswith("cuda")


def peak_memory_share(study: Study, trial: Trial) -> float:
    """Return the peak memory of the trial's tensors as a share of its device's memory; NaN if unknown."""
    peak, total = study.curve(trial, "device_memory").finite.values, trial.fact("device_memory_bytes")
    return float(peak.max()) / total if len(peak) and total > 0 else math.nan


def data_loader_facts(trial: Trial) -> dict[str, Any]:
    """Return the logged facts about the training data loader (`advisor.contract.TAG_LOADER`); empty if unreadable."""
    return trial.json_fact("loader", dict)


def _values_at_steps(steps: IntArray, curve: Curve) -> FloatArray:
    return np.asarray(curve.values[np.searchsorted(curve.steps, steps)], dtype=np.float64)
