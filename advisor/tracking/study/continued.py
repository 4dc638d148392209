"""Joins runs that continue an interrupted run, for example after preemption. Otherwise, they would count as repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from advisor import contract
from advisor.model.reading import Decision
from advisor.model.space import words_of_name
from advisor.system import spill
from advisor.tracking.runs import Experiment, Points, RunStatus
from advisor.tracking.study import axes, inference
from advisor.tracking.study.probes import select_runs

_PARAMETERS_COMPARED_FIRST = 8
"""Comparing a thousand parameters in a thousand runs would take seconds."""
_MAX_RELATIVE_LENGTH_DIFFERENCE = 0.02
"""Maximum relative difference in length between the longest run and two parts that both count from zero."""
_MAX_GAP_INTERVALS = 1.5
"""Maximum gap between two parts, in multiples of the interval between logged steps."""


@dataclass(frozen=True, slots=True)
class _TrialPart:
    status: RunStatus
    started: float
    ended: float
    """Time of the last logged point."""
    first_step: int
    last_step: int
    step_interval: int
    """Mean distance between the logged steps of the metric with the fewest."""


class _Continuation(NamedTuple):
    """A run and its continuation, as indices in `Experiment.runs`."""

    earlier_run: int
    continuing_run: int
    restarts_from_zero: bool


def join_continued(experiment: Experiment) -> tuple[Experiment, tuple[Decision, ...]]:
    """Join each interrupted run and its continuation into one run, which has the id of the last part, and whose points at equal
    steps are those of the later part. Return the experiment and the decision about them."""
    groups = _groups_with_equal_settings(experiment)
    parts = _find_trial_parts(experiment) if groups else {}
    # Steps that are Unix times cannot show that a run continues an earlier run.
    if not parts or any(p.first_step >= axes.MIN_UNIX_TIME_S for p in parts.values()):
        return experiment, ()
    longest, usual = max(p.last_step for p in parts.values()), min(p.first_step for p in parts.values())
    joins: list[_Continuation] = []
    for group in groups:
        runs_by_start = sorted((i for i in group if i in parts), key=lambda i: parts[i].started)
        for former, later in pairwise(runs_by_start):
            one, two = parts[former], parts[later]
            restarts_from_zero = _is_continuation(one, two, usual, longest)
            if restarts_from_zero is not None:
                joins.append(_Continuation(former, later, restarts_from_zero))
                end = two.last_step + (one.last_step + one.step_interval - two.first_step if restarts_from_zero else 0)
                first = min(one.first_step, two.first_step)
                parts[later] = replace(two, first_step=first, last_step=end, started=one.started)
    if not joins:
        return experiment, ()
    first_clause = "1 run continues an interrupted one" if len(joins) == 1 else f"{len(joins)} runs continue interrupted ones"
    text = f"{first_clause} with the same parameters. Each counts as one trial together with the run that it continues."
    return _join_runs(experiment, joins), (Decision(topic="status", text=text),)


def _is_continuation(earlier: _TrialPart, later: _TrialPart, usual_first_step: int, longest: int) -> bool | None:
    """Return None if `later` does not continue `earlier`, else whether `later` counts its steps from zero.

    If `later` starts beyond `usual_first_step`, `later` continues `earlier` if its steps begin at most `_MAX_GAP_INTERVALS` after
    the last step of `earlier` and end later. Otherwise, only a killed run is continued: by a run that repeats the training and
    reaches the same step, or by a run that counts from zero if both together are as long as the longest run.
    """
    if later.started < earlier.ended:
        return None
    interval = max(earlier.step_interval, later.step_interval)
    if later.first_step > usual_first_step + interval:
        goes_on = later.first_step <= earlier.last_step + _MAX_GAP_INTERVALS * interval and later.last_step > earlier.last_step
        return False if goes_on else None
    if earlier.status != "KILLED":
        return None
    joint_length = earlier.last_step + earlier.step_interval + later.last_step - later.first_step
    error = _MAX_RELATIVE_LENGTH_DIFFERENCE * longest + interval
    if later.last_step < longest - error and abs(joint_length - longest) <= error:
        return True
    return False if later.last_step >= earlier.last_step else None


def _groups_with_equal_settings(experiment: Experiment) -> list[list[int]]:
    logged_names = {name for run in experiment.runs for name in run.params}
    few = set(sorted(logged_names)[:_PARAMETERS_COMPARED_FIRST])
    first_params = inference.parse_params([{n: t for n, t in run.params.items() if n in few} for run in experiment.runs])
    if all(first_params) and len(set(map(inference.exact_key, first_params))) == len(first_params):
        return []  # the values of the first parameters already differ between all runs
    parsed_params = inference.parse_params([run.params for run in experiment.runs])
    of_seeds = {n for n in logged_names if {"seed", "random"} & set(words_of_name(n)) or inference.is_trial_number(n)}
    groups: dict[object, list[int]] = {}
    for i, run in enumerate(experiment.runs):
        seeds = [(name, run.params[name]) for name in of_seeds & run.params.keys()]
        seeds.append((contract.TAG_SEED, run.tags.get(contract.TAG_SEED, "")))
        if parsed_params[i]:
            groups.setdefault((inference.exact_key(parsed_params[i]), tuple(sorted(seeds))), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _find_trial_parts(experiment: Experiment) -> dict[int, _TrialPart]:
    count = len(experiment.runs)
    low, high, interval = (np.full(count, _MISSING_STEP), np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64))
    end_times = np.full(count, -np.inf)
    for metric, points in experiment.points.items():
        if metric.startswith("system/") or not len(points.runs):
            continue
        first, last = np.full(count, _MISSING_STEP), np.full(count, -1, dtype=np.int64)
        np.minimum.at(first, points.runs, points.steps)
        np.maximum.at(last, points.runs, points.steps)
        number = np.bincount(points.runs, minlength=count)
        has_gap = number > 1
        interval[has_gap] = np.maximum(interval[has_gap], (last - first)[has_gap] // (number - 1)[has_gap])
        low, high = np.minimum(low, first), np.maximum(high, last)
        np.maximum.at(end_times, points.runs, np.nan_to_num(points.times, nan=-np.inf))
    return {
        i: _TrialPart(run.status, run.started, float(end_times[i]), int(low[i]), int(high[i]), int(interval[i]))
        for i, run in enumerate(experiment.runs)
        if run.started is not None and high[i] >= 0 and math.isfinite(end_times[i])
    }


_TRIAL_END_TAGS = (contract.TAG_STATUS, contract.TAG_ERROR, "state", "trial_state", "optuna.trial.state", "error")
"""Tags that tell how a run, but not how the trial of an interrupted run, ended."""
_MISSING_STEP = np.iinfo(np.int64).max
"""Stands for the first step of a run without points."""


def _join_runs(experiment: Experiment, continuations: Sequence[_Continuation]) -> Experiment:
    """continuations: ordered by the start of the later part."""
    fits_in_memory = experiment.fits_in_memory
    points = {metric: _join_points(p, continuations, fits=fits_in_memory) for metric, p in experiment.points.items()}
    runs = list(experiment.runs)
    for join in continuations:
        former, later = runs[join.earlier_run], runs[join.continuing_run]
        tags: Mapping[str, str] = {**{k: v for k, v in former.tags.items() if k not in _TRIAL_END_TAGS}, **later.tags}
        runs[join.continuing_run] = replace(later, started=former.started, tags=tags)
    is_kept = np.ones(len(runs), dtype=np.bool_)
    is_kept[[join.earlier_run for join in continuations]] = False
    return select_runs(replace(experiment, runs=tuple(runs), points=points), is_kept)


def _join_points(points: Points, continuations: Sequence[_Continuation], *, fits: bool) -> Points:
    runs, steps = points.runs.copy(), points.steps.copy()
    is_kept = np.ones(len(runs), dtype=np.bool_)
    for join in continuations:
        former, later = np.flatnonzero(is_kept & (runs == join.earlier_run)), np.flatnonzero(runs == join.continuing_run)
        if not len(later):
            runs[former] = join.continuing_run
            continue
        if join.restarts_from_zero and len(former):
            interval = int(np.median(np.diff(np.unique(steps[former])))) if len(former) > 1 else 1
            steps[later] += int(steps[former].max()) + interval - int(steps[later].min())
        is_kept[former[steps[former] >= steps[later].min()]] = False
        runs[former] = join.continuing_run
    columns = runs[is_kept], steps[is_kept], points.values[is_kept], points.times[is_kept]
    return Points(*spill.move_columns_to_file(columns, fits=fits))
