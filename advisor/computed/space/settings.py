"""Reads the distinct hyperparameter settings of a study as arrays, and detects training lengths that were tuned separately.

Longer runs give better results, so a hyperparameter that was changed together with the training length seems to matter. Only
trials of the same length show whether the hyperparameter itself matters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.computed import computed
from advisor.computed.space import failures
from advisor.model.finding import Finding, MissingData, require_searched_hyperparameters
from advisor.model.parameter_kinds import is_batch_size
from advisor.model.reading import Decision
from advisor.model.space import BoolArray, FloatArray, IntArray, SettingKey, is_learning_rate, is_training_length, setting_key
from advisor.model.study import Study, Trial
from advisor.model.words import count, listed
from advisor.stats import ranks

MAX_AXES = 40
"""Maximum number of hyperparameters that rules examine; the time of some rules grows with the cube of this number."""
MAX_COORDINATES = 1000
"""Maximum number of coordinates of all examined hyperparameters together. A numeric hyperparameter has one coordinate, and a
categorical hyperparameter has one per value."""

MAX_PRUNED_TRIAL_SHARE = 0.2
"""Maximum share of pruned trials for which the complete trials still represent the search space. Our choice."""
_MIN_LENGTH_RATIO = 1.2
"""Minimum ratio of two training lengths that count as different. Our choice."""
_MIN_TRIALS_PER_LENGTH = 5
_MAX_TRAINING_LENGTHS = 4
"""Maximum number of distinct training lengths that count as tuned separately. With more, the study sampled them."""
_SIGNIFICANCE_LEVEL = 0.05
"""Significance level of the test whether trials of different lengths have different hyperparameters, for the whole study."""


@dataclass(frozen=True)
class Settings:
    """The n distinct settings that a study tried. Several trials of one setting with different seeds count as one observation."""

    trials: tuple[tuple[Trial, ...], ...]
    costs: FloatArray
    """Lower median cost of the successful trials of each setting, (n,); NaN if at least half of its trials failed."""
    failed: BoolArray
    """Mask (n,): True for a setting if at least half of its trials diverged, crashed or got stuck."""
    numeric: dict[str, FloatArray]
    """Positions of the settings in the range of each examined numeric hyperparameter, shape (n,); NaN if the value is missing."""
    choices: dict[str, FloatArray]
    """For each examined hyperparameter with choices, shape (n,): index of the setting's value among the choices, divided by the
    last index; NaN if the value is missing."""
    unexamined_positions: dict[str, FloatArray] = field(default_factory=dict)
    """Positions of the settings, shape (n,), for each hyperparameter that is not examined, because its effect is weak."""

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def result_count(self) -> int:
        """Number of settings that have a result."""
        return int((~self.failed).sum())

    def corrected_level(self, false_alarms: float) -> float:
        """Return the significance level of each test on an examined hyperparameter: `false_alarms` times the examined share of
        the varied hyperparameters (Bonferroni)."""
        examined_count = len(self.numeric) + len(self.choices)
        varied_count = examined_count + len(self.unexamined_positions)
        return false_alarms * examined_count / varied_count if self.unexamined_positions else false_alarms

    def require_settings(self, min_settings: int, min_results: int) -> None:
        """Raise MissingData if fewer than `min_settings` settings ended or fewer than `min_results` of them have a result."""
        if len(self) < min_settings or self.result_count < min_results:
            ended = f"{count(len(self), 'distinct setting')} ended, {self.result_count} of them with a result"
            needed = f"at least {min_settings} are needed, {min_results} of them with a result"
            raise MissingData(f"{ended}; {needed}", needs="trials", at_least=min_settings)


def require_two_settings(study: Study) -> None:
    """Raise MissingData if the study searches no hyperparameter, or if fewer than two settings ended."""
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
    """Return True if more than 20 % of the ended trials were pruned, so that early results selected the complete trials."""
    return sum(t.status == "pruned" for t in study.trials) > MAX_PRUNED_TRIAL_SHARE * int(study.ended.sum())


def require_unpruned(study: Study) -> None:
    """Raise MissingData if `was_heavily_pruned`."""
    if was_heavily_pruned(study):
        pruned, ended = sum(t.status == "pruned" for t in study.trials), int(study.ended.sum())
        raise MissingData(
            f"{pruned} of {ended} trials were pruned, so early results selected which trials are complete; run trials without "
            "pruning (in Optuna, pruner=NopPruner())",
            needs="full_length",
        )


@computed
def read_settings(study: Study) -> Settings:
    """Return the settings of the ended trials, best first; the order does not depend on when the trials ran.

    Settings with equal costs are ordered by their mean cost late in training, as in `Study.ranked`. If several training lengths
    were tuned separately, complete trials of the lengths that are not judged are left out.
    """
    tuned_lengths = separately_tuned_lengths(study)
    return settings_of_all_lengths(study) if tuned_lengths is None else _read_settings(study, tuned_lengths.is_other_length)


@computed
def settings_of_all_lengths(study: Study) -> Settings:
    """Return the settings of all ended trials, for rules that examine which settings fail. If training lengths were tuned
    separately, costs of trials with different lengths are not comparable."""
    return _read_settings(study, np.zeros(len(study.trials), dtype=np.bool_))


def _read_settings(study: Study, left_out: BoolArray) -> Settings:
    successful_costs = np.where(failures.failure_masks(study).has_failed, np.nan, study.costs)
    trials_by_setting: dict[SettingKey, list[Trial]] = {}
    for trial in study.trials:
        # A pruned trial did not fail, but its result at full length is unknown.
        is_result_known = study.ended[trial.index] and (study.comparable[trial.index] or not study.feasible[trial.index])
        if is_result_known and not left_out[trial.index]:
            trials_by_setting.setdefault(_searched_setting_key(study, trial), []).append(trial)
    groups = list(trials_by_setting.values())
    positions = {name: study.positions(name, [group[0] for group in groups]) for name in study.searched}
    costs = np.array([_lower_median(successful_costs[[t.index for t in g]]) for g in groups])
    comparable = [[t for t in group if study.comparable[t.index]] for group in groups]
    late_costs = np.array([min(map(study.late_cost, group), default=math.inf) for group in comparable])
    best_first = np.lexsort((*positions.values(), late_costs, costs)) if groups else np.empty(0, np.int64)
    costs = costs[best_first]
    positions = {n: u[best_first] for n, u in positions.items()}
    examined_names = _choose_hyperparameters(study, positions, costs)
    numeric_names = {n for n, p in study.searched.items() if p.numeric}
    return Settings(
        trials=tuple(tuple(groups[i]) for i in best_first),
        costs=costs,
        failed=np.isnan(costs),
        numeric={n: u for n, u in positions.items() if n in examined_names and n in numeric_names},
        choices={n: u for n, u in positions.items() if n in examined_names and n not in numeric_names},
        unexamined_positions={n: u for n, u in positions.items() if n not in examined_names},
    )


def out_of_memory_settings(study: Study, tried: Settings) -> BoolArray:
    """Return a mask, shape (n,), of the settings whose trials all ran out of memory. Running out of memory is a limit of the
    machine and not a bad result of the setting."""
    is_out_of_memory = failures.failure_masks(study).out_of_memory
    return tried.failed & np.array([all(is_out_of_memory[t.index] for t in group) for group in tried.trials], dtype=np.bool_)


def settings_within_memory(study: Study) -> Settings:
    """Return the settings of the ended trials, except settings whose trials all ran out of memory."""
    tried = read_settings(study)
    fits = ~out_of_memory_settings(study, tried)
    if fits.all():
        return tried
    return replace(
        tried,
        trials=tuple(group for group, kept in zip(tried.trials, fits, strict=True) if kept),
        costs=tried.costs[fits],
        failed=tried.failed[fits],
        numeric={n: u[fits] for n, u in tried.numeric.items()},
        choices={n: u[fits] for n, u in tried.choices.items()},
        unexamined_positions={n: u[fits] for n, u in tried.unexamined_positions.items()},
    )


def median_cost_per_setting(study: Study) -> FloatArray:
    """Return the lower median cost of each setting, shape (n,); NaN if at least half of the setting's trials failed.

    Unlike `Settings.costs`, the medians include trials that ended at chance level.
    """
    costs = np.where(study.comparable, study.costs, np.nan)
    return np.array([_lower_median(costs[[t.index for t in group]]) for group in read_settings(study).trials], dtype=np.float64)


def _lower_median(costs: FloatArray) -> float:
    """Return the lower median of the costs, shape (n,), or NaN if at least half of them are not finite."""
    finite_costs = np.sort(costs[np.isfinite(costs)])
    return float(finite_costs[(len(finite_costs) - 1) // 2]) if 2 * len(finite_costs) > len(costs) else math.nan


def trial_weights(study: Study) -> FloatArray:
    """Return a weight for each trial, shape (number of trials,), such that sums of weights count settings and not trials: the
    ended trials of one setting together weigh 1."""
    keys = [_searched_setting_key(study, trial) for trial in study.trials]
    counts = Counter(key for key, ended in zip(keys, study.ended, strict=True) if ended)
    return np.array([1 / counts[key] if ended else 0.0 for key, ended in zip(keys, study.ended, strict=True)])


def _searched_setting_key(study: Study, trial: Trial) -> SettingKey:
    return setting_key({name: trial.params.get(name, "") for name in study.searched})


def search_space_decisions(study: Study) -> tuple[Decision, ...]:
    """Return the decisions to leave out hyperparameters, or trials of some lengths, from rules about the search space."""
    examined = read_settings(study)
    if not examined.unexamined_positions:
        return length_decisions(study)
    names = [*examined.numeric, *examined.choices]
    text = (
        f"{len(names) + len(examined.unexamined_positions)} hyperparameters vary. The checks of the search "
        f"space examine the {len(names)} with the strongest effects, each one alone, and correct their significance "
        "levels for the others."
    )
    overrule = "--ignore NAME leaves out a parameter that is not tuned"
    return Decision(topic="parameters", text=text, overrule=overrule), *length_decisions(study)


def _choose_hyperparameters(study: Study, positions: dict[str, FloatArray], costs: FloatArray) -> set[str]:
    """Return the names of the hyperparameters to examine: all of them or, if these exceed the limits, the learning rates, the
    declared scientific hyperparameters, and the hyperparameters with the strongest effects.

    positions: for each hyperparameter, the positions of the settings in its range, shape (n,). costs: shape (n,).
    """
    value_counts = {n: min(len(np.unique(u[np.isfinite(u)])), ranks.MAX_FITTED_TRIALS) for n, u in positions.items()}
    sizes = {n: 1 if study.searched[n].numeric else values for n, values in value_counts.items()}
    if len(positions) <= MAX_AXES and sum(sizes.values()) <= MAX_COORDINATES:
        return set(positions)
    names = sorted(positions, key=lambda n: not study.searched[n].numeric)
    numeric = [positions[n] for n in names if study.searched[n].numeric]
    choices = [positions[n] for n in names if not study.searched[n].numeric]
    log_p = dict(zip(names, ranks.log_p_values_of_axes(numeric, choices, costs), strict=True))
    declared_scientific = {n for n, p in study.searched.items() if p.role == "scientific" and n not in study.inferred}
    names.sort(key=lambda n: (n not in declared_scientific and not is_learning_rate(n), log_p[n], n))
    fits_in_limit = np.cumsum([sizes[n] for n in names]) <= MAX_COORDINATES
    return {n for n, fits in zip(names[:MAX_AXES], fits_in_limit, strict=False) if fits}


# --- trials of different lengths --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunedLengths:
    """Training lengths that a study tuned separately, so that their trials have different hyperparameter values. Rules about
    the search space judge the trials of only one of these lengths."""

    steps_and_trials: tuple[tuple[int, int], ...]
    """(Last step, number of trials) of each training length, shortest first."""
    judged_index: int
    """Index of the training length that rules judge: the (longest) length with the most trials."""
    is_other_length: BoolArray
    """Mask, over all trials, of the complete trials that do not have the judged length."""


@computed
def separately_tuned_lengths(study: Study) -> TunedLengths | None:
    """Return the training lengths that the study tuned separately; None if there are none."""
    trials = [t for t in study.trials if t.status == "complete" and study.comparable[t.index]]
    lengths = np.array([study.cost_curve(t).steps[-1] for t in trials], dtype=np.int64)
    if study.kind == "no-network" or len(trials) < 2 * _MIN_TRIALS_PER_LENGTH or lengths.min() < 1:
        return None
    shortest_first = np.argsort(lengths, kind="stable")
    ascending, length_groups = lengths[shortest_first], np.zeros(len(lengths), dtype=np.int64)
    length_groups[shortest_first[1:]] = np.cumsum(ascending[1:] >= _MIN_LENGTH_RATIO * ascending[:-1])
    trials_per_length = np.bincount(length_groups)
    if not 1 < len(trials_per_length) <= _MAX_TRAINING_LENGTHS or trials_per_length.min() < _MIN_TRIALS_PER_LENGTH:
        return None
    if not _do_hyperparameters_differ(study, trials, length_groups):
        return None
    judged_length = int(max(range(len(trials_per_length)), key=lambda g: (trials_per_length[g], g)))
    is_other_length = np.zeros(len(study.trials), dtype=np.bool_)
    is_other_length[[t.index for t, group in zip(trials, length_groups, strict=True) if group != judged_length]] = True
    last_steps = [int(lengths[length_groups == g].max()) for g in range(len(trials_per_length))]
    return TunedLengths(tuple(zip(last_steps, trials_per_length.tolist(), strict=True)), judged_length, is_other_length)


def length_decisions(study: Study) -> tuple[Decision, ...]:
    """If several training lengths were tuned separately, return the decision to judge the search space by trials of only one."""
    tuned_lengths = separately_tuned_lengths(study)
    if tuned_lengths is None:
        return ()
    lengths_text = [f"{count(trials, 'trial')} of {study.length(steps)}" for steps, trials in tuned_lengths.steps_and_trials]
    decision_text = (
        f"Trials of different lengths have different hyperparameters: {listed(lengths_text)}. The checks of the search space "
        f"judge only the {lengths_text[tuned_lengths.judged_index]}."
    )
    return (Decision(topic="parameters", text=decision_text, overrule="--filter selects the trials of another length"),)


def _do_hyperparameters_differ(study: Study, trials: Sequence[Trial], length_groups: IntArray) -> bool:
    from scipy.stats import kruskal  # scipy.stats loads slowly and is rarely needed here

    examined_names = [n for n in study.searched if not (is_training_length(n) or n in study.lengths or is_batch_size(n))]
    position_columns = []
    for positions in (study.positions(n, trials) for n in examined_names):
        distinct_positions = np.unique(positions)
        are_values_repeated = 2 * len(distinct_positions) <= len(positions)
        # If each value occurs with only one training length, the hyperparameter sets the length, as a number of blocks does.
        if not (are_values_repeated and all(len(set(length_groups[positions == v].tolist())) == 1 for v in distinct_positions)):
            position_columns.append(positions)
    for positions in position_columns:
        by_length = (positions[(length_groups == g) & np.isfinite(positions)] for g in range(int(length_groups.max()) + 1))
        groups = [part for part in by_length if len(part) >= _MIN_TRIALS_PER_LENGTH]
        has_different_positions = len(groups) > 1 and np.ptp(np.concatenate(groups)) > 0
        if has_different_positions and kruskal(*groups).pvalue <= _SIGNIFICANCE_LEVEL / len(position_columns):
            return True
    return False
