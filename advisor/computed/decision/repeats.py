"""Groups trials by their setting, to estimate the variance between trials of one setting with different seeds.

A first result that led to the repetition of its setting was probably lucky, so means and comparisons use only the runs that
started after the setting was selected.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from advisor.computed import computed
from advisor.computed.space import failures
from advisor.model.space import FloatArray, HyperparameterValue, SettingKey, setting_key
from advisor.model.study import Study, Trial
from advisor.stats import difference

MIN_RELATIVE_DIFFERENCE = 0.002
"""Minimum relative difference between results that matters (from 1, for results between 0.5 and 1): 0.007 at a loss of 3.28, or
0.01 percentage points at an accuracy of 95 %."""
MAX_COMPARED_SETTINGS = 4
"""Maximum number of settings of a comparison instead of a search. Our choice."""

_UNEQUAL_VARIANCE_LEVEL = 0.05
"""Maximum probability that any setting is left out although all settings have the same variance between seeds."""

SettingKeyFunction: TypeAlias = Callable[[Trial], SettingKey]


@dataclass(frozen=True)
class Setting:
    """One setting of the hyperparameters and the trials that ran it."""

    trials: tuple[Trial, ...]
    """Successful trials at full length, one per seed, in the order of their start."""
    costs: FloatArray
    """Best cost of each successful trial, shape (n,)."""
    failed: tuple[Trial, ...]
    """Trials of the setting that diverged, crashed or learned nothing."""
    selection_size: int = 0
    """Number of first trials whose good results led to the repetition."""

    @property
    def costs_after_selection(self) -> FloatArray:
        """Costs of the trials that started after the setting was selected, in the order of their start."""
        return self.costs[self.selection_size :]

    @property
    def mean(self) -> float:
        """Mean cost over the trials that started after the setting was selected."""
        return float(np.mean(self.costs_after_selection))

    @property
    def params(self) -> Mapping[str, HyperparameterValue]:
        return self.trials[0].params


@computed
def full_length_settings(study: Study) -> tuple[Setting, ...]:
    """Return the settings with a result at full length, ordered by their first trial."""
    return tuple(group_into_settings(study, study.trials))


@computed
def compared_settings(study: Study) -> tuple[Setting, ...]:
    """Return the settings of a study that compares a few: it repeated each of them, or tunes no numeric hyperparameter; empty
    if it searches. Settings that differ only in their code are left out, because a study file cannot state code versions."""
    tried = full_length_settings(study)
    if not study.searched or not 2 <= len(tried) <= MAX_COMPARED_SETTINGS:
        return ()
    tunes_number = any(p.numeric and p.role != "scientific" for p in study.searched.values())
    return tried if not tunes_number or all(len(s.trials) > 1 for s in tried) else ()


def group_into_settings(study: Study, trials: Sequence[Trial], key: SettingKeyFunction | None = None) -> list[Setting]:
    """Return the settings of the given trials, ordered by their first trial. key: function from a trial to its setting's key,
    by default of its hyperparameters. A trial with the setting and seed of an earlier one is no repeat, and is left out."""
    bad = failures.failure_masks(study).any
    groups = _ended_trials_by_setting(study, trials, key)
    all_groups = groups if trials is study.trials else _ended_trials_by_setting(study, study.trials, key)
    found = []
    for own_key, group in groups.items():
        successful = [t for t in group if study.comparable[t.index] and not bad[t.index]]
        first_of_seed = {t.seed: t for t in reversed(successful)}
        successful = [t for t in successful if t.seed is None or first_of_seed[t.seed] is t]
        if successful:
            failed_trials = tuple(t for t in group if bad[t.index])
            first = _selection_size(all_groups, own_key)
            # With fewer later than first runs, the numbers were probably unequal by plan.
            first = first if len(successful) >= 2 * first else 0
            found.append(Setting(tuple(successful), study.costs[[t.index for t in successful]], failed_trials, first))
    return found


def _ended_trials_by_setting(
    study: Study, trials: Sequence[Trial], key_of_trial: SettingKeyFunction | None
) -> dict[SettingKey, list[Trial]]:
    """Return the ended trials of each setting in the order of their start."""
    key_of_trial = key_of_trial or key
    groups: dict[SettingKey, list[Trial]] = {}
    for trial in sorted(trials, key=start_sort_key):
        if study.ended[trial.index]:
            groups.setdefault(key_of_trial(trial), []).append(trial)
    return groups


def start_sort_key(trial: Trial) -> tuple[float, int]:
    return trial.started or 0.0, trial.index


def _selection_size(groups: Mapping[SettingKey, Sequence[Trial]], own_key: SettingKey) -> int:
    """Return the number of first runs whose results led to the repetition of a setting; 0 if none did. Settings that were not
    repeated show how many first runs each had; without runs of other settings between the first and the last, all were planned
    together."""
    runs = groups[own_key]
    counts = {len(g) for g in groups.values() if len(g) < len(runs)}
    if not counts:
        return 0
    others = sorted(start_sort_key(t) for k, g in groups.items() if k != own_key for t in g)
    for count in sorted(counts):
        before, last = start_sort_key(runs[count - 1]), start_sort_key(runs[-1])
        if bisect.bisect(others, before) < bisect.bisect(others, last):
            return count
    return 0


def min_relevant_difference(value: float, share: float = MIN_RELATIVE_DIFFERENCE) -> float:
    return share * (min(value, 1 - value) if 0 < value < 1 else abs(value))


def key(trial: Trial) -> SettingKey:
    """Return a key of the trial's setting: its hyperparameters or, without any, its commit, because only the code can differ."""
    return setting_key(trial.params) or (("commit", trial.commit),)


def first_trial_per_setting(trials: Iterable[Trial]) -> list[Trial]:
    """Return the first trial of each setting, in the order of the given trials."""
    first: dict[SettingKey, Trial] = {}
    for trial in trials:
        first.setdefault(key(trial), trial)
    return list(first.values())


def settings_of_equal_variance(tried: Sequence[Setting]) -> list[Setting]:
    """Return the repeated settings, best first, without those that vary more between seeds than the better ones do (F-test).

    Seeds often differ far more at a bad setting, such as a learning rate at which training has hardly begun, than at the good
    settings that are compared.
    """
    repeated = sorted((s for s in tried if len(s.costs) > 1), key=lambda s: s.mean)
    alike: list[Setting] = []
    for setting in repeated:
        pool = difference.pooled_deviation([s.costs for s in alike])
        own = difference.pooled_deviation([setting.costs])
        level = _UNEQUAL_VARIANCE_LEVEL / max(len(repeated) - 1, 1)
        if pool is None or own is None or difference.p_value_of_larger_variance(own, pool) > level:
            alike.append(setting)
    return alike


def variance_between_seeds(tried: Sequence[Setting]) -> tuple[float, int] | None:
    """Return (standard deviation, degrees of freedom) between seeds, pooled over `settings_of_equal_variance`; None without
    repeats."""
    return difference.pooled_deviation([s.costs for s in settings_of_equal_variance(tried)])


def noun(tried: Sequence[Setting]) -> str:
    """Return the noun for a repeat: `seed` if all repeated trials logged their seeds, else `run`, as for cross-validation
    folds."""
    repeated = [t for s in tried if len(s.trials) > 1 for t in s.trials]
    return "seed" if repeated and all(t.seed is not None for t in repeated) else "run"
