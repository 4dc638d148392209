"""Reads from an adapter's logs which checkpoints a trial kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from advisor.model.space import as_number
from advisor.model.study import Curve, Study, Trial
from advisor.stats.curve import LevelRise, rise_at_point

MIN_MATERIAL_RISE = 0.02
"""Minimum cost of a worse checkpoint above the best level of its curve, as a share of the curve's range. Our choice."""
MAX_RISE_P_VALUE = 0.05


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints that one trial kept."""

    steps: tuple[float, ...]
    path_by_step: Mapping[float, str]
    """Path of each checkpoint's file or folder by training step, if the path is known."""
    chosen_step: float | None
    """Step of the checkpoint that the trial chose as its result, if any."""


def logged_checkpoints(trial: Trial) -> Checkpoints | None:
    """Return the checkpoints that the trial kept; None if none were logged or the log cannot be parsed."""
    try:
        checkpoint_facts = trial.parsed_fact("checkpoints")
        if checkpoint_facts["policy"] == "none":  # the adapter saved no checkpoints, but the user's code may have saved some
            return None
        steps = tuple(s for entry in checkpoint_facts["kept"] if math.isfinite(s := as_number(entry["step"])))
        path_by_step = {as_number(e["step"]): str(e["path"]) for e in checkpoint_facts["kept"] if e.get("path")}
        chosen_step = as_number(checkpoint_facts.get("chosen"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return Checkpoints(steps, path_by_step, chosen_step if math.isfinite(chosen_step) else None)


def best_checkpoint(study: Study, trial: Trial) -> tuple[int, float] | None:
    """Return (step, cost) of the checkpoint that the trial chose, or else of its best checkpoint; None without logged
    checkpoints. The cost of a checkpoint comes from the last evaluation up to its step."""
    checkpoints, curve = logged_checkpoints(trial), study.cost_curve(trial).finite
    steps = () if checkpoints is None else checkpoints.steps if checkpoints.chosen_step is None else (checkpoints.chosen_step,)
    if not steps or not len(curve):
        return None
    costs = [float(curve.values[evaluation_index(curve, int(step))]) for step in steps]
    best_index = int(np.argmin(costs))
    return int(steps[best_index]), costs[best_index]


def evaluation_index(curve: Curve, step: int) -> int:
    """Return the index of the last evaluation up to this step, or 0 if the step is before all evaluations."""
    return max(int(np.searchsorted(curve.steps, step, side="right")) - 1, 0)


def is_worse_than_best(study: Study, trial: Trial, step: int) -> bool:
    """Return True if the trial's checkpoint at this step is worse than the best level of the curve by more than noise. With too
    few evaluations to measure noise, any value above the best one is worse."""
    curve = study.cost_curve(trial).finite
    index = evaluation_index(curve, step)
    rise_above_best = rise_at_point(curve.values, index)
    if rise_above_best is None:
        return bool(curve.values[index] > curve.values.min())
    p_value = rise_above_best.p_value * count_equally_good_trials(study, trial, rise_above_best)
    return p_value <= MAX_RISE_P_VALUE and rise_above_best.share >= MIN_MATERIAL_RISE


def count_equally_good_trials(study: Study, trial: Trial, rise: LevelRise) -> int:
    """Return the number of trials that are as good as `trial` within noise. P-values are multiplied by the number of equally
    good trials, because the best of many is partly best by luck."""
    return int(np.sum(study.costs[study.feasible] <= study.costs[trial.index] + 2 * rise.error))


def find_overwriting_trials(study: Study, trial: Trial) -> tuple[str, list[Trial]]:
    """Return (path of the trial's chosen or best checkpoint, later trials on the same machine that wrote a checkpoint to it)."""
    checkpoints, best_step_and_cost = logged_checkpoints(trial), best_checkpoint(study, trial)
    path = "" if checkpoints is None or best_step_and_cost is None else checkpoints.path_by_step.get(best_step_and_cost[0], "")
    later_trials = [t for t in study.trials if _start_time(t) > _start_time(trial) and launch_host(t) == launch_host(trial)]
    return path, [t for t in later_trials if path and path in checkpoint_paths(t)]


def checkpoint_paths(trial: Trial) -> tuple[str, ...]:
    checkpoints = logged_checkpoints(trial)
    return () if checkpoints is None else tuple(checkpoints.path_by_step.values())


def _start_time(trial: Trial) -> float:
    return math.nan if trial.started is None else trial.started


def launch_host(trial: Trial) -> str:
    """Return the name of the machine that launched the trial; empty if it was not logged."""
    return str(trial.json_fact("launch", dict).get("host") or "")
