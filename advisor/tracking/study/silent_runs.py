"""Ends runs that MLflow calls running but that log nothing any more: nobody ended them, or their process was killed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from advisor.model.reading import Decision
from advisor.model.space import FloatArray
from advisor.model.words import count
from advisor.tracking.runs import Experiment, Points

MIN_SILENCE_S = 3600.0
"""Minimum time without a new value after which a run counts as ended, in seconds."""
MIN_SILENCE_IN_PAUSES = 10.0
"""The same minimum, as a multiple of the run's longest earlier pause between two values."""
_MIN_COMPLETE_SHARE = 0.9
"""Minimum last step of a complete silent run, as a share of the last step of the longest run."""


def end_silent_runs(experiment: Experiment, now: float | None = None) -> tuple[Experiment, tuple[Decision, ...]]:
    """Return the experiment in which silent runs have ended, and the decision about them. A silent run counts as finished if it
    is about as long as the longest run, else as killed. now: time in seconds since 1970, by default the present."""
    now = time.time() if now is None else now
    silent_runs = [
        i for i, run in enumerate(experiment.runs) if run.unfinished and _is_silent(experiment.points, i, run.started, now)
    ]
    if not silent_runs:
        return experiment, ()
    last_steps = np.zeros(len(experiment.runs))
    for points in experiment.points.values():
        np.maximum.at(last_steps, points.runs, points.steps)
    runs = list(experiment.runs)
    for i in silent_runs:
        is_complete = last_steps[i] >= _MIN_COMPLETE_SHARE * last_steps.max()
        runs[i] = replace(runs[i], status="FINISHED" if is_complete else "KILLED")
    killed = sum(runs[i].status == "KILLED" for i in silent_runs)
    shorter = f", {killed} of them before the step that others reached" if killed else ""
    hours = f"{MIN_SILENCE_S / 3600:.0f} h"
    text = (
        f"{count(len(silent_runs), 'run')} that MLflow calls running logged nothing for over {hours} and count as ended{shorter}. "
        "A new value makes a run count as running again."
    )
    return replace(experiment, runs=tuple(runs)), (Decision(topic="status", text=text),)


def _is_silent(points: Mapping[str, Points], run: int, started: float | None, now: float) -> bool:
    times = _logged_times(points, run)
    if not len(times):
        return False
    pauses = np.diff(times if started is None else np.r_[min(started, times[0]), times])
    return bool(now - times[-1] > max(MIN_SILENCE_S, MIN_SILENCE_IN_PAUSES * pauses.max(initial=0.0)))


def _logged_times(points: Mapping[str, Points], run: int) -> FloatArray:
    """Return the known times of all values of the run, sorted."""
    times = np.concatenate([np.empty(0), *(p.times[p.runs == run] for p in points.values())])
    return np.sort(times[np.isfinite(times)])
