"""Chooses the best setting of a search by the mean result of each setting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advisor.planning.blocks.model import Trained


def group_by_setting(trials: Sequence[Trained]) -> list[list[Trained]]:
    """Group the trials by candidate setting. Trials with a different training length or schedule count as a different setting."""
    groups: list[list[Trained]] = []
    for trial in (t for t in trials if t.probe is None):
        same = next((g for g in groups if _setting_key(g[0]) == _setting_key(trial)), None)
        if same is None:
            groups.append([trial])
        else:
            same.append(trial)
    return groups


def _setting_key(trial: Trained) -> tuple[dict[str, object], int, dict[str, object]]:
    return dict(trial.setting), trial.steps, dict(trial.schedule)


def mean_cost(trials: Sequence[Trained]) -> float:
    return math.inf if any(t.failed for t in trials) else math.fsum(t.cost for t in trials) / len(trials)


def lowest_cost_trials(groups: Sequence[Sequence[Trained]]) -> Sequence[Trained]:
    """Return the trials of the setting with the lowest mean cost; of equal ones the latest, chosen from most results."""
    return min(reversed(groups), key=mean_cost)


def best(trials: Sequence[Trained]) -> Sequence[Trained]:
    """Return the trials of the best setting. A single run is uncertain, so only repeated settings count if there are any."""
    groups = group_by_setting(trials)
    repeated = [g for g in groups if len(g) > 1 and math.isfinite(mean_cost(g))]
    return lowest_cost_trials(repeated or groups)


def any_setting_has_result(trials: Sequence[Trained]) -> bool:
    """Return whether a setting has a result in all of its runs."""
    return any(math.isfinite(mean_cost(group)) for group in group_by_setting(trials))
