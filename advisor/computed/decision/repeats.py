"""Groups trials by their setting, to estimate the variance between trials of one setting with different seeds.

If a good first result led someone to repeat a setting, this result was probably lucky. Means and comparisons therefore use only
runs that started after the setting was selected.
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
"""Minimum difference between results that matters, as a share of the result, or of its distance from 1 for results between 0.5
and 1: 0.007 at a loss of 3.28, or 0.01 percentage points at an accuracy of 95 %."""
MAX_COMPARED_SETTINGS = 4
"""Maximum number of settings of a study that compares settings; a study with more settings is a search. Our choice."""

_UNEQUAL_VARIANCE_LEVEL = 0.05
"""Significance level of unequal variance between seeds: the maximum probability of leaving out any setting without cause."""

SettingKeyFunction: TypeAlias = Callable[[Trial], SettingKey]


@dataclass(frozen=True)
class Setting:
    """One setting of the hyperparameters, and the trials with this setting."""

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
    """Return the settings that have a result at full training length, ordered by their first trial."""
    return tuple(group_into_settings(study, study.trials))


@computed
def compared_settings(study: Study) -> tuple[Setting, ...]:
    """Return the settings of a study that compares a few settings and does not search: it repeated each setting, or tunes no
    numeric hyperparameter. Empty for a search, and if only the code differs, because a study file cannot state code versions."""
    settings = full_length_settings(study)
    if not study.searched or not 2 <= len(settings) <= MAX_COMPARED_SETTINGS:
        return ()
    does_study_tune_number = any(p.numeric and p.role != "scientific" for p in study.searched.values())
    return settings if not does_study_tune_number or all(len(s.trials) > 1 for s in settings) else ()


def group_into_settings(study: Study, trials: Sequence[Trial], key: SettingKeyFunction | None = None) -> list[Setting]:
    """Return the settings of the given trials, ordered by their first trial. key: function that identifies a trial's setting, by
    default by its hyperparameters. A trial with the setting and seed of an earlier trial is no repeat, and is left out."""
    has_failed = failures.failure_masks(study).has_failed
    groups = _trials_by_setting(study, trials, key)
    all_groups = groups if trials is study.trials else _trials_by_setting(study, study.trials, key)
    settings = []
    for own_key, group in groups.items():
        successful = [t for t in group if study.comparable[t.index] and not has_failed[t.index]]
        first_of_seed = {t.seed: t for t in reversed(successful)}
        successful = [t for t in successful if t.seed is None or first_of_seed[t.seed] is t]
        if successful:
            failed = tuple(t for t in group if has_failed[t.index])
            selection_size = _selection_size(all_groups, own_key)
            # With fewer later runs than first runs, the study probably planned more runs of this setting from the start.
            selection_size = selection_size if len(successful) >= 2 * selection_size else 0
            settings.append(Setting(tuple(successful), study.costs[[t.index for t in successful]], failed, selection_size))
    return settings


def _trials_by_setting(study: Study, trials: Sequence[Trial], by: SettingKeyFunction | None) -> dict[SettingKey, list[Trial]]:
    by = by or key
    trials_by_setting: dict[SettingKey, list[Trial]] = {}
    for trial in sorted(trials, key=start_sort_key):
        if study.ended[trial.index]:
            trials_by_setting.setdefault(by(trial), []).append(trial)
    return trials_by_setting


def start_sort_key(trial: Trial) -> tuple[float, int]:
    return trial.started or 0.0, trial.index


def _selection_size(trials_by_setting: Mapping[SettingKey, Sequence[Trial]], own_key: SettingKey) -> int:
    """Return the number of first runs whose results led to the repetition of a setting; 0 if none did. Settings with fewer runs
    show how many first runs each setting had. If no other setting ran in between, all runs were planned together."""
    own_trials = trials_by_setting[own_key]
    first_run_counts = {len(g) for g in trials_by_setting.values() if len(g) < len(own_trials)}
    if not first_run_counts:
        return 0
    starts_of_others = sorted(start_sort_key(t) for k, g in trials_by_setting.items() if k != own_key for t in g)
    for count in sorted(first_run_counts):
        before, last = start_sort_key(own_trials[count - 1]), start_sort_key(own_trials[-1])
        if bisect.bisect(starts_of_others, before) < bisect.bisect(starts_of_others, last):
            return count
    return 0


def min_relevant_difference(value: float, share: float = MIN_RELATIVE_DIFFERENCE) -> float:
    return share * (min(value, 1 - value) if 0 < value < 1 else abs(value))


def key(trial: Trial) -> SettingKey:
    """Return an identifier of the trial's setting: its hyperparameters or, without any, its commit, as only the code can differ."""
    return setting_key(trial.params) or (("commit", trial.commit),)


def first_trial_per_setting(trials: Iterable[Trial]) -> list[Trial]:
    """Return the first trial of each setting, in the order of the given trials."""
    first_by_setting: dict[SettingKey, Trial] = {}
    for trial in trials:
        first_by_setting.setdefault(key(trial), trial)
    return list(first_by_setting.values())


def settings_of_equal_variance(settings: Sequence[Setting]) -> list[Setting]:
    """Return the repeated settings, best first, except settings that vary more between seeds than all better ones (F-test).

    Seeds often differ far more at a bad setting, such as a much too low learning rate, than at good settings."""
    repeated_settings = sorted((s for s in settings if len(s.costs) > 1), key=lambda s: s.mean)
    similar_settings: list[Setting] = []
    for setting in repeated_settings:
        pooled = difference.pooled_deviation([s.costs for s in similar_settings])
        own = difference.pooled_deviation([setting.costs])
        level_per_test = _UNEQUAL_VARIANCE_LEVEL / max(len(repeated_settings) - 1, 1)
        if pooled is None or own is None or difference.p_value_of_larger_variance(own, pooled) > level_per_test:
            similar_settings.append(setting)
    return similar_settings


def variance_between_seeds(settings: Sequence[Setting]) -> tuple[float, int] | None:
    """Return (standard deviation, degrees of freedom) between seeds, pooled over `settings_of_equal_variance`, or None."""
    return difference.pooled_deviation([s.costs for s in settings_of_equal_variance(settings)])


def noun(settings: Sequence[Setting]) -> str:
    """Return the noun for a repeat: `seed` if all repeated trials logged seeds, else `run`, as for cross-validation folds."""
    repeated_trials = [t for s in settings if len(s.trials) > 1 for t in s.trials]
    return "seed" if repeated_trials and all(t.seed is not None for t in repeated_trials) else "run"
