"""The distinct hyperparameter settings of a study, as arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.computed import computed
from advisor.computed.space import budgets, failures
from advisor.model.finding import Finding, MissingData, require_searched_hyperparameters
from advisor.model.reading import Decision
from advisor.model.space import BoolArray, FloatArray, SettingKey, is_learning_rate, setting_key
from advisor.model.study import Study, Trial
from advisor.model.words import count
from advisor.stats import ranks

MAX_AXES = 40
"""Maximum number of hyperparameters that rules about the search space examine; some rules take time that grows with its cube."""
MAX_COORDINATES = 1000
"""Maximum number of coordinates of all examined hyperparameters together. A numeric hyperparameter has one coordinate, and a
categorical hyperparameter has one per value."""

MAX_PRUNED_TRIAL_SHARE = 0.2
"""Maximum share of pruned trials; with more, the complete trials do not represent the search space. Our choice."""


@dataclass(frozen=True)
class Settings:
    """The n distinct settings that a study tried. Several trials of one setting with different seeds count as one observation."""

    trials: tuple[tuple[Trial, ...], ...]
    costs: FloatArray
    """Lower median cost of the successful trials of each setting, shape (n,); NaN if at least half of the setting's trials
    failed."""
    failed: BoolArray
    """Mask (n,) of the settings for which at least half of the trials diverged, crashed or got stuck at chance level."""
    numeric: dict[str, FloatArray]
    """For each examined numeric hyperparameter, the positions of the settings in its range, shape (n,); NaN if a setting lacks
    it."""
    choices: dict[str, FloatArray]
    """For each examined categorical hyperparameter, index of each setting's value / last index, shape (n,); NaN if missing."""
    unexamined_positions: dict[str, FloatArray] = field(default_factory=dict)
    """Positions of the settings, shape (n,), for each hyperparameter that is not examined. If a study varies too many
    hyperparameters, those with the weakest effects are not examined."""

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def result_count(self) -> int:
        """Number of settings that have a result."""
        return int((~self.failed).sum())

    def corrected_level(self, false_alarms: float) -> float:
        """Return the significance level of each test on examined hyperparameters.

        If hyperparameters are left out, `false_alarms` is multiplied by the examined share of the varied hyperparameters
        (Bonferroni).
        """
        examined = len(self.numeric) + len(self.choices)
        return (
            false_alarms * examined / (examined + len(self.unexamined_positions)) if self.unexamined_positions else false_alarms
        )

    def require_settings(self, settings: int, successes: int) -> None:
        """Raise MissingData if fewer than `settings` settings ended or fewer than `successes` have a result."""
        if len(self) < settings or self.result_count < successes:
            raise MissingData(
                f"{count(len(self), 'distinct setting')} ended, {self.result_count} of them with a result; "
                f"at least {settings} are needed, {successes} of them with a result",
                needs="trials",
                at_least=settings,
            )


def require_two_settings(study: Study) -> None:
    """Raise MissingData if fewer than two settings ended, because a comparison needs two."""
    require_searched_hyperparameters(study)
    if len(read_settings(study)) < 2:
        raise MissingData("fewer than two settings ended", needs="trials", at_least=2)


def require_two_settings_unless(found: Iterator[Finding], study: Study) -> Iterator[Finding]:
    """Yield the findings of a rule. Raise MissingData if there are none and fewer than two settings ended."""
    findings = list(found)
    if not findings:
        require_two_settings(study)
    yield from findings


def was_heavily_pruned(study: Study) -> bool:
    """Return True if more than a fifth of the trials were pruned, so that their early results selected which trials are
    complete."""
    return sum(t.status == "pruned" for t in study.trials) > MAX_PRUNED_TRIAL_SHARE * int(study.ended.sum())


def require_unpruned(study: Study) -> None:
    """Raise MissingData if more than a fifth of the trials were pruned, because early results then selected the complete
    trials."""
    if was_heavily_pruned(study):
        pruned, ended = sum(t.status == "pruned" for t in study.trials), int(study.ended.sum())
        raise MissingData(
            f"{pruned} of {ended} trials were pruned, and early results selected the complete ones; this needs trials that are not "
            "pruned (in Optuna, pruner=NopPruner())",
            needs="full_length",
        )


@computed
def read_settings(study: Study) -> Settings:
    """Return the settings of the ended trials, best first. The order of the settings does not depend on when their trials ran.

    Settings with equal costs are ordered by their mean cost late in training, as in `Study.ranked`. If several training lengths
    were tuned separately, only complete trials of the judged length count.
    """
    apart = budgets.separately_tuned_lengths(study)
    return settings_of_all_lengths(study) if apart is None else _read_settings(study, apart.is_other_length)


@computed
def settings_of_all_lengths(study: Study) -> Settings:
    """Return the settings of all ended trials, for rules that examine which settings fail. Costs of these trials are not
    comparable, because the trials have different lengths."""
    return _read_settings(study, np.zeros(len(study.trials), dtype=np.bool_))


def _read_settings(study: Study, left_out: BoolArray) -> Settings:
    """Return the settings of all ended trials except those in the mask `left_out`, shape (number of trials,)."""
    has_failed = failures.failure_masks(study).any
    pools: dict[SettingKey, list[Trial]] = {}
    for trial in study.trials:
        if left_out[trial.index]:
            continue
        # A pruned trial did not fail, but its result at full length is unknown.
        if study.ended[trial.index] and (study.comparable[trial.index] or not study.feasible[trial.index]):
            pools.setdefault(_searched_setting_key(study, trial), []).append(trial)
    rows = [_pool_setting_trials(group, study.costs, has_failed) for group in pools.values()]
    first = [group[0] for group in pools.values()]
    positions = {name: study.positions(name, first) for name in study.searched}
    costs = np.array([cost for cost, _ in rows])
    groups = list(pools.values())
    late = np.array(
        [min((study.late_cost(t) for t in group if study.comparable[t.index]), default=math.inf) for group in groups]
    )
    order = np.lexsort((*positions.values(), late, costs)) if rows else np.empty(0, np.int64)
    costs = costs[order]
    positions = {n: u[order] for n, u in positions.items()}
    examined = _choose_hyperparameters(study, positions, costs)
    numeric = {n for n, p in study.searched.items() if p.numeric}
    return Settings(
        trials=tuple(tuple(groups[i]) for i in order),
        costs=costs,
        failed=np.array([bad for _, bad in rows], dtype=np.bool_)[order],
        numeric={n: u for n, u in positions.items() if n in examined and n in numeric},
        choices={n: u for n, u in positions.items() if n in examined and n not in numeric},
        unexamined_positions={n: u for n, u in positions.items() if n not in examined},
    )


def out_of_memory_settings(study: Study, tried: Settings) -> BoolArray:
    """Return a mask, shape (n,), of the settings whose trials all ran out of memory. Running out of memory is a limit of the
    machine and not a bad result of the setting."""
    lacking = failures.failure_masks(study).out_of_memory
    return tried.failed & np.array([all(lacking[t.index] for t in group) for group in tried.trials], dtype=np.bool_)


def settings_within_memory(study: Study) -> Settings:
    """Return the settings of the ended trials, except settings whose trials all ran out of memory."""
    tried = read_settings(study)
    keep = ~out_of_memory_settings(study, tried)
    if keep.all():
        return tried
    return replace(
        tried,
        trials=tuple(group for group, kept in zip(tried.trials, keep, strict=True) if kept),
        costs=tried.costs[keep],
        failed=tried.failed[keep],
        numeric={n: u[keep] for n, u in tried.numeric.items()},
        choices={n: u[keep] for n, u in tried.choices.items()},
        unexamined_positions={n: u[keep] for n, u in tried.unexamined_positions.items()},
    )


def median_cost_per_setting(study: Study) -> FloatArray:
    """Return the lower median cost of each setting, shape (n,); NaN if at least half of the setting's trials failed.

    Unlike `Settings.costs`, the medians include trials that ended at chance level.
    """
    costs = np.where(study.comparable, study.costs, np.nan)
    return np.array([_lower_median(costs[[t.index for t in group]]) for group in read_settings(study).trials], dtype=np.float64)


def _lower_median(costs: FloatArray) -> float:
    """Return the lower median of the costs, shape (n,), or NaN if at least half of them are not finite."""
    known = np.sort(costs[np.isfinite(costs)])
    return float(known[(len(known) - 1) // 2]) if 2 * len(known) > len(costs) else math.nan


def trial_weights(study: Study) -> FloatArray:
    """Return a weight for each trial, shape (number of trials,), such that all ended trials of one setting together weigh 1.

    Sums of weights therefore count settings and not trials.
    """
    keys = [_searched_setting_key(study, trial) for trial in study.trials]
    counts = Counter(key for key, ended in zip(keys, study.ended, strict=True) if ended)
    return np.array([1 / counts[key] if ended else 0.0 for key, ended in zip(keys, study.ended, strict=True)])


def _searched_setting_key(study: Study, trial: Trial) -> SettingKey:
    """Return a key that identifies the trial's values of the searched hyperparameters."""
    return setting_key({name: trial.params.get(name, "") for name in study.searched})


def search_space_decisions(study: Study) -> tuple[Decision, ...]:
    """Return the decisions to leave out hyperparameters, or trials of some lengths, from rules about the search space."""
    tried = read_settings(study)
    if not tried.unexamined_positions:
        return budgets.length_decisions(study)
    examined = [*tried.numeric, *tried.choices]
    text = (
        f"{len(examined) + len(tried.unexamined_positions)} hyperparameters vary. The checks of the search space examine the "
        f"{len(examined)} with the strongest effects, each one alone, and correct their significance levels for the others."
    )
    left_out = Decision(topic="parameters", text=text, overrule="--ignore NAME leaves out a parameter that is not tuned")
    return left_out, *budgets.length_decisions(study)


def _choose_hyperparameters(study: Study, positions: dict[str, FloatArray], costs: FloatArray) -> set[str]:
    """Return the names of the hyperparameters to examine: all of them, unless they are too many.

    If they are many, return the learning rates, the declared scientific hyperparameters and those with the strongest effects.
    positions: by hyperparameter, shape (n,); costs: (n,).
    """
    columns = {n: 1 if study.searched[n].numeric else _number_of_values(u) for n, u in positions.items()}
    if len(positions) <= MAX_AXES and sum(columns.values()) <= MAX_COORDINATES:
        return set(positions)
    names = sorted(positions, key=lambda n: not study.searched[n].numeric)
    numeric = [positions[n] for n in names if study.searched[n].numeric]
    choices = [positions[n] for n in names if not study.searched[n].numeric]
    log_p = dict(zip(names, ranks.log_p_values_of_axes(numeric, choices, costs), strict=True))
    asked = {n for n, p in study.searched.items() if p.role == "scientific" and n not in study.inferred}
    names.sort(key=lambda n: (n not in asked and not is_learning_rate(n), log_p[n], n))
    room = np.cumsum([columns[n] for n in names]) <= MAX_COORDINATES
    return {n for n, fits in zip(names[:MAX_AXES], room, strict=False) if fits}


def _number_of_values(positions: FloatArray) -> int:
    """Return the number of values of a categorical hyperparameter, but at most the number of trials to which a response is
    fitted."""
    return min(len(np.unique(positions[np.isfinite(positions)])), ranks.MAX_FITTED_TRIALS)


def _pool_setting_trials(group: list[Trial], costs: FloatArray, has_failed: BoolArray) -> tuple[float, bool]:
    index = np.array([t.index for t in group])
    bad = has_failed[index] | ~np.isfinite(costs[index])
    if 2 * bad.sum() >= len(index):
        return math.nan, True
    return _lower_median(costs[index][~bad]), False
