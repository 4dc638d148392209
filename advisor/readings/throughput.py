"""How fast trials train."""

from __future__ import annotations

import math

import numpy as np

from advisor.space import FloatArray
from advisor.study import Study, Trial


def examples_per_second(study: Study, trial: Trial, batch_size: float) -> float:
    """Median throughput of a trial, as logged, else from its step time and batch size; NaN if neither was logged."""
    speed = study.curve(trial, "examples_per_second").finite.values
    if len(speed):
        return float(np.median(speed))
    times = study.curve(trial, "step_time").finite.values
    return batch_size / float(np.median(times)) if len(times) and np.median(times) > 0 else math.nan


def smallest_fast_batch(study: Study, sizes: FloatArray, share: float) -> float | None:
    """The smallest batch size at which at least this share of the highest throughput is reached.

    sizes: batch size of each trial, shape (number of trials,), NaN where unknown. None where fewer than two sizes have a
    throughput.
    """
    speeds: dict[float, list[float]] = {}
    for trial in study.trials:
        size = float(sizes[trial.index])
        speed = examples_per_second(study, trial, size)
        if math.isfinite(size) and math.isfinite(speed):
            speeds.setdefault(size, []).append(speed)
    typical = {size: float(np.median(s)) for size, s in speeds.items()}
    if len(typical) < 2:
        return None
    return min(size for size, speed in typical.items() if speed >= share * max(typical.values()))
