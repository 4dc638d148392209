"""The distinct hyperparameter settings of a study, as arrays, and training lengths that were tuned separately.

Longer runs give better results, so a hyperparameter that was changed together with the length seems to matter. Only trials of
the same length show whether the hyperparameter itself matters.
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
"""Maximum number of hyperparameters that are examined; some rules take time that grows with its cube."""
MAX_COORDINATES = 1000
"""Maximum number of coordinates of all examined hyperparameters together. A numeric hyperparameter has one coordinate, and a
categorical hyperparameter has one per value."""

MAX_PRUNED_TRIAL_SHARE = 0.2
"""With a larger share of pruned trials, the complete ones do not represent the search space. Our choice."""
_MIN_LENGTH_RATIO = 1.2
"""Two training lengths count as different if the longer one is at least this multiple of the shorter one. Our choice."""
_MIN_TRIALS_PER_LENGTH = 5
_MAX_TRAINING_LENGTHS = 4
"""Maximum number of distinct training lengths that count as tuned separately. A study with more training lengths sampled the
length like a hyperparameter."""
_SIGNIFICANCE_LEVEL = 0.05
"""Level, for a whole study, of the test whether trials of different lengths have different hyperparameters."""


@dataclass(frozen=True)
class Settings:
    """The n distinct settings that a study tried. Several trials of one setting with different seeds count as one observation."""

    trials: tuple[tuple[Trial, ...], ...]
    costs: FloatArray
    """Lower median cost of the successful trials of each setting, (n,); NaN if at least half of its trials failed."""
    failed: BoolArray
    """Mask (n,): True for a setting if at least half of its trials diverged, crashed or got stuck."""
    numeric: dict[str, FloatArray]
    """Positions of the settings in the range of each examined numeric hyperparameter, (n,); NaN if missing."""
    choices: dict[str, FloatArray]
    """For each examined choice, index of the setting's value / last index, (n,); NaN if missing."""
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
    apart = separately_tuned_lengths(study)
    return settings_of_all_lengths(study) if apart is None else _read_settings(study, apart.is_other_length)


@computed
def settings_of_all_lengths(study: Study) -> Settings:
    """Return the settings of all ended trials, for rules that examine which settings fail. Costs of these trials are not
    comparable, because the trials have different lengths."""
    return _read_settings(study, np.zeros(len(study.trials), dtype=np.bool_))


def _read_settings(study: Study, left_out: BoolArray) -> Settings:
    """Return the settings of all ended trials except those in the mask `left_out`, shape (number of trials,)."""
    successful_costs = np.where(failures.failure_masks(study).any, np.nan, study.costs)
    pools: dict[SettingKey, list[Trial]] = {}
    for trial in study.trials:
        # A pruned trial did not fail, but its result at full length is unknown.
        is_known = study.ended[trial.index] and (study.comparable[trial.index] or not study.feasible[trial.index])
        if is_known and not left_out[trial.index]:
            pools.setdefault(_searched_setting_key(study, trial), []).append(trial)
    groups = list(pools.values())
    positions = {name: study.positions(name, [group[0] for group in groups]) for name in study.searched}
    costs = np.array([_lower_median(successful_costs[[t.index for t in g]]) for g in groups])
    late = np.array(
        [min((study.late_cost(t) for t in group if study.comparable[t.index]), default=math.inf) for group in groups]
    )
    order = np.lexsort((*positions.values(), late, costs)) if groups else np.empty(0, np.int64)
    costs = costs[order]
    positions = {n: u[order] for n, u in positions.items()}
    examined = _choose_hyperparameters(study, positions, costs)
    numeric = {n for n, p in study.searched.items() if p.numeric}
    return Settings(
        trials=tuple(tuple(groups[i]) for i in order),
        costs=costs,
        failed=np.isnan(costs),
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
        return length_decisions(study)
    examined = [*tried.numeric, *tried.choices]
    text = (
        f"{len(examined) + len(tried.unexamined_positions)} hyperparameters vary. The checks of the search space examine the "
        f"{len(examined)} with the strongest effects, each one alone, and correct their significance levels for the others."
    )
    left_out = Decision(topic="parameters", text=text, overrule="--ignore NAME leaves out a parameter that is not tuned")
    return left_out, *length_decisions(study)


def _choose_hyperparameters(study: Study, positions: dict[str, FloatArray], costs: FloatArray) -> set[str]:
    """Return the names of the hyperparameters to examine: all of them, unless they are too many.

    If they are many, return the learning rates, the declared scientific hyperparameters and those with the strongest effects.
    positions: by hyperparameter, shape (n,); costs: (n,).
    """
    columns = {
        n: 1 if study.searched[n].numeric else min(len(np.unique(u[np.isfinite(u)])), ranks.MAX_FITTED_TRIALS)
        for n, u in positions.items()
    }
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


# --- trials of different lengths --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TunedLengths:
    """Training lengths that a study tuned separately, so that their trials have different hyperparameter values. Rules about
    the search space judge the trials of only one of these lengths."""

    steps_and_trials: tuple[tuple[int, int], ...]
    """(Last step, number of trials) of each training length, shortest first."""
    judged_index: int
    """Index of the length that rules judge: the one with the most trials, or the longest of several."""
    is_other_length: BoolArray
    """Mask, over all trials, of the complete ones with any other length."""


@computed
def separately_tuned_lengths(study: Study) -> TunedLengths | None:
    """Return the training lengths that the study tuned separately; None if it did not."""
    trials = [t for t in study.trials if t.status == "complete" and study.comparable[t.index]]
    lengths = np.array([study.cost_curve(t).steps[-1] for t in trials], dtype=np.int64)
    if study.kind == "no-network" or len(trials) < 2 * _MIN_TRIALS_PER_LENGTH or lengths.min() < 1:
        return None
    order = np.argsort(lengths, kind="stable")
    ascending, groups = lengths[order], np.zeros(len(lengths), dtype=np.int64)
    groups[order[1:]] = np.cumsum(ascending[1:] >= _MIN_LENGTH_RATIO * ascending[:-1])
    sizes = np.bincount(groups)
    if not 1 < len(sizes) <= _MAX_TRAINING_LENGTHS or sizes.min() < _MIN_TRIALS_PER_LENGTH:
        return None
    if not _do_hyperparameters_differ(study, trials, groups):
        return None
    judged = int(max(range(len(sizes)), key=lambda g: (sizes[g], g)))
    others = np.zeros(len(study.trials), dtype=np.bool_)
    others[[t.index for t, group in zip(trials, groups, strict=True) if group != judged]] = True
    ends = [int(lengths[groups == g].max()) for g in range(len(sizes))]
    return TunedLengths(tuple(zip(ends, sizes.tolist(), strict=True)), judged, others)


def length_decisions(study: Study) -> tuple[Decision, ...]:
    """If several training lengths were tuned separately, return the decision to judge the search space by trials of only one."""
    found = separately_tuned_lengths(study)
    if found is None:
        return ()
    groups = [f"{count(trials, 'trial')} of {study.length(steps)}" for steps, trials in found.steps_and_trials]
    text = (
        f"Trials of different lengths have different hyperparameters: {listed(groups)}. The checks of the search space judge only "
        f"the {groups[found.judged_index]}."
    )
    return (Decision(topic="parameters", text=text, overrule="--filter selects the trials of another length"),)


def _do_hyperparameters_differ(study: Study, trials: Sequence[Trial], groups: IntArray) -> bool:
    """Return True if trials of different lengths differ in a hyperparameter that does not set the length."""
    from scipy.stats import kruskal  # scipy.stats loads slowly and is rarely needed here

    names = [n for n in study.searched if not (is_training_length(n) or n in study.lengths or is_batch_size(n))]
    axes = []
    for positions in (study.positions(n, trials) for n in names):
        values = np.unique(positions)
        few = 2 * len(values) <= len(positions)
        # Each of few values occurs with only one training length, as for a number of training blocks.
        if not (few and all(len(set(groups[positions == v].tolist())) == 1 for v in values)):
            axes.append(positions)
    for positions in axes:
        parts = [part[np.isfinite(part)] for part in (positions[groups == g] for g in range(int(groups.max()) + 1))]
        parts = [part for part in parts if len(part) >= _MIN_TRIALS_PER_LENGTH]
        differs = len(parts) > 1 and np.ptp(np.concatenate(parts)) > 0
        if differs and kruskal(*parts).pvalue <= _SIGNIFICANCE_LEVEL / len(axes):
            return True
    return False
