"""Where the time of training steps goes: computing, waiting for data, and what neither explains."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.model.space import FloatArray, IntArray
from advisor.model.study import Study, Trial
from advisor.stats.ratios import Ratio, ratio

FEWEST = 20
"""Logged steps, after the first ones, below which a share of their time is not told."""
FIRST = 10
"""First logged steps that are left out: workers start, kernels are compiled."""
MOST_TRIALS = 64
"""Trials to look at, at most: the time of a step hardly depends on what a study varies."""
INPUT = 0.25
"""Share of the time lost to waiting for data from which on training is input-bound. Small networks on a CPU, with their data in
memory and without workers, spend up to 18 % so."""
HOST = 0.2
"""Share of the time in which the device idles, though its data is there, from which on the host holds it up. Ours."""
_PAUSE = 3.0
"""Times the median step from which on a step holds something else, such as an evaluation."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of one trial's steps, after the first ones."""

    trial: Trial
    seconds: float
    """Mean time of a step."""
    waited: Ratio
    """Share of it lost to waiting for data; on a GPU without what it computed meanwhile."""
    bursts: float
    """Share of the waiting that the longest tenth of the waits brings: near 0.1 where each step waits alike."""
    blocked: Ratio | None
    """Share of it in which a GPU neither computed nor was waited for; None where computing was not timed on a GPU."""


def read(study: Study, trial: Trial) -> StepTimes | None:
    """The times of the trial's steps; None where they, or the waits, were not logged often enough."""
    step, wait = study.curve(trial, "step_time").finite, study.curve(trial, "data_wait").finite
    steps = np.intersect1d(step.steps, wait.steps, assume_unique=True)
    computed = study.curve(trial, "compute_time").finite
    timed = on_gpu(trial) and len(computed) >= FEWEST
    if timed:
        steps = np.intersect1d(steps, computed.steps, assume_unique=True)
    if len(steps) < FIRST + FEWEST:
        return None
    weights = np.diff(steps, prepend=steps[:1] - 1)[FIRST:].astype(
        np.float64
    )  # a window's mean stands for all of its steps
    steps = steps[FIRST:]
    whole, waited = _at(steps, step.steps, step.values), _at(steps, wait.steps, wait.values)
    if not whole.sum() > 0:
        return None
    blocked = None
    if timed:
        idle = np.maximum(whole - _at(steps, computed.steps, computed.values), 0.0)
        waited = np.minimum(waited, idle)
        usual = whole <= _PAUSE * np.median(whole)
        blocked = ratio((idle - waited)[usual], whole[usual], weights[usual])
    waited = np.minimum(waited, whole)
    longest = np.sort(waited)[-math.ceil(len(waited) / 10) :]
    return StepTimes(
        trial=trial,
        seconds=float(np.average(whole, weights=weights)),
        waited=ratio(waited, whole, weights),
        bursts=float(longest.sum() / max(waited.sum(), 1e-300)),
        blocked=blocked,
    )


def of_study(study: Study) -> list[StepTimes]:
    """The step times of the ended trials, in their order; at most `MOST_TRIALS`."""
    ended = [t for t in study.trials if study.ended[t.index]][:MOST_TRIALS]
    return [times for t in ended if (times := read(study, t)) is not None]


def mostly(ratios: Sequence[Ratio], limit: float, false_alarms: float) -> list[int]:
    """Which of the ratios surely exceed the limit, where these are more than half of them; otherwise none."""
    sure = [i for i, r in enumerate(ratios) if r.chance_above(limit) >= 1 - false_alarms]
    return sure if 2 * len(sure) > len(ratios) else []


def on_gpu(trial: Trial) -> bool:
    """Whether the trial ran on a CUDA device."""
    return trial.facts.get("device", "").startswith("cuda")


def memory_used(study: Study, trial: Trial) -> float:
    """The largest share of its device's memory that the trial's tensors took; NaN if unknown."""
    peak, total = study.curve(trial, "device_memory").finite.values, trial.fact("device_memory_bytes")
    return float(peak.max()) / total if len(peak) and total > 0 else math.nan


def loader(trial: Trial) -> dict[str, Any]:
    """What the trial noted of its training loader, see `advisor.contract.TAG_LOADER`; empty if nothing."""
    try:
        found = json.loads(trial.facts.get("loader", "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _at(steps: IntArray, known: IntArray, values: FloatArray) -> FloatArray:
    return np.asarray(values[np.searchsorted(known, steps)], dtype=np.float64)
