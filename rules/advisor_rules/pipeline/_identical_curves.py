"""Finds trials that have different settings but identical curves, so that their settings had no effect."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np

from advisor.computed.decision import repeats
from advisor.model import parameter_kinds
from advisor.model.space import is_learning_rate
from advisor.model.study import Curve, Signal, Study, Trial

_RESULT_SIGNALS: tuple[Signal, ...] = ("train_loss", "train_eval_loss", "train_objective", "valid_loss", "grad_norm")
"""Training results to compare besides the objective."""

SettingParameters: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class IdenticalTrials:
    """Trials of two or more settings with identical curves."""

    trials: tuple[Trial, ...]
    differing_names: tuple[str, ...]
    """Hyperparameters that differ among the trials with identical curves, sorted."""
    settings: int
    change_count: int
    """Number of value changes in the trial's curve that changes most often."""
    p_value: float
    """p-value: probability that as many of the study's settings have identical curves by chance; see `find_identical_curves`."""


@dataclass(frozen=True)
class IdenticalCurves:
    """The groups of identical curves in a study."""

    judged: tuple[Trial, ...]
    """Trials with a curve that is not constant."""
    settings: int
    """Number of distinct settings among the judged trials."""
    varied_names: tuple[str, ...]
    """Hyperparameters that differ among the judged trials."""
    identical_groups: tuple[IdenticalTrials, ...]
    """Groups of identical curves, largest group first."""
    _setting_by_trial: Mapping[int, SettingParameters]
    _curve_bytes_by_trial: Mapping[int, bytes]
    """Curves as bytes, by index of the trial."""

    @property
    def has_shared_seeds(self) -> bool:
        """True if two settings have the same seed, or logged no seed."""
        return len({t.seed for t in self.judged}) < self.settings

    def have_no_effect(self, names: Collection[str]) -> bool:
        """Return True if all trials that share a seed and differ only in these hyperparameters have identical curves."""
        groups: dict[object, dict[SettingParameters, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        for trial in self.judged:
            setting = self._setting_by_trial[trial.index]
            rest = (trial.seed, tuple(part for part in setting if part[0] not in names))
            groups[rest][setting].add(self._curve_bytes_by_trial[trial.index])
        pairs = [list(chain.from_iterable(g.values())) for g in groups.values() if len(g) > 1]
        return bool(pairs) and all(len(set(curves)) == 1 for curves in pairs)


def find_identical_curves(study: Study, false_alarms: float) -> IdenticalCurves:
    """Return the settings whose results (objective, losses and gradient norm) are identical.

    The p-value assumes that two different training runs agree in each new value of a curve with probability 1/2. The true
    probability is far lower, because curves are compared in all logged digits. The p-value uses the curve with the most
    changes, and is corrected for the number of ways to choose as many settings from all settings.
    """
    curves, change_counts = _changing_curves(study)
    judged_trials = [t for t in study.trials if t.index in curves]
    # Parameters of the machine, such as the number of data workers, cannot change a result.
    names = {name for name in study.searched if not parameter_kinds.concerns_machine_only(name)}
    settings = {t.index: tuple(part for part in repeats.key(t) if part[0] in names) for t in judged_trials}
    groups: dict[bytes, list[Trial]] = defaultdict(list)
    for trial in judged_trials:
        groups[curves[trial.index]].append(trial)
    twins = [_group_identical_trials(group, settings, change_counts[group[0].index]) for group in groups.values()]
    significant = sorted(
        (t for t in twins if t.settings > 1 and t.p_value <= false_alarms), key=lambda t: (-t.settings, t.trials[0].index)
    )
    distinct = set(settings.values())
    return IdenticalCurves(
        tuple(judged_trials), len(distinct), _names_of_varied(distinct), tuple(significant), settings, curves
    )


def _changing_curves(study: Study) -> tuple[dict[int, bytes], dict[int, int]]:
    """Return two mappings by trial index: the results of each ended trial as bytes, and the number of value changes in its
    results. Trials whose results never change are left out."""
    curves, change_counts = {}, {}
    for trial in study.trials:
        if study.ended[trial.index]:
            results = _distinct_result_curves(study, trial)
            changes = max(((int(np.count_nonzero(np.diff(c.finite.values)))) for c in results), default=0)
            if changes:
                change_counts[trial.index] = changes
                curves[trial.index] = b"|".join(part for c in results for part in (c.steps.tobytes(), c.values.tobytes()))
    return curves, change_counts


def _group_identical_trials(group: Sequence[Trial], settings: Mapping[int, SettingParameters], changes: int) -> IdenticalTrials:
    own = {settings[t.index] for t in group}
    p = _expected_groups_by_chance(len(own), len(set(settings.values())), changes)
    return IdenticalTrials(tuple(group), _names_of_varied(own), len(own), changes, p)


def settings_differ_clearly(group: IdenticalTrials, varied: Sequence[str]) -> bool:
    """Return True if the settings differ in a learning rate or in all varied hyperparameters, which would change any
    training."""
    return any(map(is_learning_rate, group.differing_names)) or (
        len(group.differing_names) > 1 and set(group.differing_names) == set(varied)
    )


def _distinct_result_curves(study: Study, trial: Trial) -> list[Curve]:
    """Return the distinct result curves of the trial; empty if none was logged."""
    names = dict.fromkeys([study.spec.objective.metric, *(study.signals[s] for s in _RESULT_SIGNALS if s in study.signals)])
    return [study.metric(trial, name) for name in names]


def _names_of_varied(settings: Collection[SettingParameters]) -> tuple[str, ...]:
    """Return the hyperparameters whose values differ among the settings."""
    common = set[tuple[str, str]].intersection(*map(set, settings)) if settings else set()
    return tuple(sorted({name for setting in settings for name, _ in set(setting) - common}))


def _expected_groups_by_chance(same: int, settings: int, moves: int) -> float:
    """Return the expected number of groups of size `same` whose curves agree by chance at every change; at most 1."""
    ways = math.lgamma(settings + 1) - math.lgamma(same + 1) - math.lgamma(settings - same + 1)
    return math.exp(min(ways - moves * (same - 1) * math.log(2), 0.0))
