"""Chooses the best setting of a search by the mean result of each setting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.planning.blocks.model import TrainedTrial


def group_by_setting(trials: Sequence[TrainedTrial]) -> list[list[TrainedTrial]]:
    """Group the trials by setting. Trials that differ in training length or schedule count as trials of different settings."""
    groups: list[list[TrainedTrial]] = []
    for trial in (t for t in trials if t.probe is None):
        group = next((g for g in groups if _setting_key(g[0]) == _setting_key(trial)), None)
        if group is None:
            groups.append([trial])
        else:
            group.append(trial)
    return groups


def _setting_key(trial: TrainedTrial) -> tuple[dict[str, object], int, dict[str, object]]:
    return dict(trial.setting), trial.steps, dict(trial.schedule)


def mean_cost(trials: Sequence[TrainedTrial]) -> float:
    return math.inf if any(t.failed for t in trials) else math.fsum(t.cost for t in trials) / len(trials)


def lowest_cost_trials(groups: Sequence[Sequence[TrainedTrial]]) -> Sequence[TrainedTrial]:
    """Return the trials of the setting with the lowest mean cost. If several settings have the lowest mean, return the latest
    one, because its choice was based on the most results."""
    return min(reversed(groups), key=mean_cost)


def trials_of_best_setting(trials: Sequence[TrainedTrial]) -> Sequence[TrainedTrial]:
    """Return the trials of the best setting. If any settings were repeated, only repeated ones count."""
    groups = group_by_setting(trials)
    repeated_groups = [g for g in groups if len(g) > 1 and math.isfinite(mean_cost(g))]
    return lowest_cost_trials(repeated_groups or groups)


def any_setting_has_result(trials: Sequence[TrainedTrial]) -> bool:
    """Return whether there is a setting of which all runs have a result."""
    return any(math.isfinite(mean_cost(group)) for group in group_by_setting(trials))
