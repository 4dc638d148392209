"""Ends runs that MLflow calls running but that log nothing any more: nobody ended them, or their process was killed."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from advisor.model.reading import Decision
from advisor.model.space import FloatArray, as_number, is_training_length
from advisor.model.words import count
from advisor.tracking.runs import Experiment

MIN_SILENCE_S = 3600.0
"""Minimum time without a new value after which a run counts as ended, in seconds."""
MIN_SILENCE_IN_PAUSES = 10.0
"""The same minimum, as a multiple of the run's longest earlier pause: before its first value, or between two values."""
_MIN_COMPLETE_SHARE = 0.9
"""Minimum length of a complete silent run, as a share of the longest run's length."""
_MIN_COMPARED_POINTS = 3
"""Minimum points of the longest run in a metric whose number of points shows how long the runs are."""


def end_silent_runs(experiment: Experiment, now: float | None = None) -> tuple[Experiment, tuple[Decision, ...]]:
    """Return the experiment in which silent runs have ended, and the decision about them. A silent run counts as finished if it
    is about as long as the longest run, else as killed. now: time in seconds since 1970, by default the present."""
    silent_runs = _find_silent_runs(experiment, time.time() if now is None else now)
    if not silent_runs:
        return experiment, ()
    is_complete = _relative_lengths(experiment) >= _MIN_COMPLETE_SHARE
    runs = list(experiment.runs)
    for i in silent_runs:
        runs[i] = replace(runs[i], status="FINISHED" if is_complete[i] else "KILLED")
    killed = sum(runs[i].status == "KILLED" for i in silent_runs)
    shorter = f", {killed} of them before the step that others reached" if killed else ""
    hours = f"{MIN_SILENCE_S / 3600:.0f} h"
    text = (
        f"{count(len(silent_runs), 'run')} that MLflow calls running logged nothing for over {hours} and count as ended{shorter}. "
        "A new value makes a run count as running again."
    )
    return replace(experiment, runs=tuple(runs)), (Decision(topic="status", text=text),)


def _find_silent_runs(experiment: Experiment, now: float) -> list[int]:
    is_unfinished = np.array([run.unfinished for run in experiment.runs], dtype=np.bool_)
    if not is_unfinished.any():
        return []
    masks = [(p, is_unfinished[p.runs] & np.isfinite(p.times)) for p in experiment.points.values()]
    logging_runs = np.concatenate([np.empty(0, dtype=np.int64), *(p.runs[mask] for p, mask in masks)])
    times = np.concatenate([np.empty(0), *(p.times[mask] for p, mask in masks)])
    order = np.lexsort((times, logging_runs))
    logging_runs, times = logging_runs[order], times[order]
    firsts = np.flatnonzero(np.diff(logging_runs, prepend=-1))
    if not len(firsts):
        return []
    found, lasts = logging_runs[firsts], np.append(firsts[1:], len(times)) - 1
    starts = np.array([np.nan if (s := experiment.runs[i].started) is None else s for i in found.tolist()])
    pauses = np.diff(times, prepend=times[0])
    pauses[firsts] = np.fmax(times[firsts] - starts, 0.0)
    limits = np.maximum(MIN_SILENCE_S, MIN_SILENCE_IN_PAUSES * np.maximum.reduceat(pauses, firsts))
    silent_runs: list[int] = found[now - times[lasts] > limits].tolist()
    return silent_runs


def _relative_lengths(experiment: Experiment) -> FloatArray:
    """Return the length of each run as a share of the longest run, shape (runs,): the largest of several shares.

    With larger batches, an equally long training has fewer steps, but as many evaluations. If a hyperparameter sets the number
    of epochs or steps, lengths are shares of it.
    """
    n = len(experiment.runs)
    last_steps = np.zeros(n)
    amounts = [last_steps]
    for points in experiment.points.values():
        np.maximum.at(last_steps, points.runs, points.steps)
        point_counts = np.bincount(points.runs, minlength=n).astype(np.float64)
        if point_counts.max() >= _MIN_COMPARED_POINTS and 2 * np.count_nonzero(point_counts) > n:
            amounts.append(point_counts)
    names = sorted({name for run in experiment.runs for name in run.params if is_training_length(name)})
    planned = [np.array([as_number(run.params.get(name, "")) for run in experiment.runs]) for name in names]
    divisors = [np.ones(n), *(lengths for lengths in planned if (lengths > 0).all() and np.isfinite(lengths).all())]
    shares = [amount / divisor for amount in amounts for divisor in divisors]
    result: FloatArray = np.max([share / max(share.max(), 1e-300) for share in shares], axis=0)
    return result
