"""Studies with timed steps, for the tests of the rules about throughput."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from studies import make_study

from advisor.model.study import Study

NAMES = {
    "step": "train/step_time_s",
    "wait": "train/data_wait_s",
    "compute": "train/compute_time_s",
    "used": "device/utilisation",
    "memory": "device/memory_peak_bytes",
    "speed": "train/examples_per_s",
}
GPU = {"device": "cuda: NVIDIA H200 x 1 on node17"}
CPU = {"device": "cpu: x86_64 x 2 on node17"}


def timed(
    *trials: Mapping[str, Any],
    params: Sequence[Mapping[str, Any]] | None = None,
    tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None = None,
    **more: Any,
) -> Study:
    """Return a study of trials with these curves, named by the keys of `NAMES` and logged at every step from 0."""
    count = len(trials)
    params = params or [{"lr": 0.1 * (i + 1)} for i in range(count)]
    curves: dict[str, list[Any]] = {"val/loss": [[1.0 + 0.1 * i] for i in range(count)]}
    steps: dict[str, list[Any]] = {"val/loss": [[100]] * count}
    for short, name in NAMES.items():
        if any(short in t for t in trials):
            curves[name] = [t.get(short) for t in trials]
            steps[name] = [np.arange(len(t.get(short, ()))) for t in trials]
    each = [tags] * count if isinstance(tags, Mapping) else tags
    return make_study(params, curves, steps=steps, tags=each, **more)
