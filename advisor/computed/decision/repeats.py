"""Settings and their repeats with other seeds, from which the trial variance is estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.space import failures
from advisor.model.space import FloatArray, Value
from advisor.model.study import Study, Trial
from advisor.stats import difference


@dataclass(frozen=True)
class Setting:
    """One setting of the hyperparameters and the trials that ran it."""

    trials: tuple[Trial, ...]
    """Successful trials, one per seed, in the order of their start."""
    costs: FloatArray
    """Best cost of each successful trial, shape (n,)."""
    failed: tuple[Trial, ...]
    """Trials of the setting that diverged, crashed or learned nothing."""

    @property
    def mean(self) -> float:
        """Mean cost over the successful trials of the setting."""
        return float(np.mean(self.costs))

    @property
    def params(self) -> Mapping[str, Value]:
        """Hyperparameters of the setting."""
        return self.trials[0].params


@computed
def settings(study: Study) -> tuple[Setting, ...]:
    """Return the settings with at least one result, in the order in which they were first tried."""
    return tuple(settings_of(study, study.trials))


def settings_of(study: Study, trials: Sequence[Trial]) -> list[Setting]:
    """Return the settings of these trials, in the order in which they were first tried.

    Numbers that differ by less than a millionth are equal, because they pass through text and 32-bit floats. If two trials of a
    setting have the same seed, the second one is not a repeat and is left out.
    """
    bad = failures.failures(study).any
    groups: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (t.started or 0.0, t.index)):
        if study.ended[trial.index]:
            groups.setdefault(key(trial), []).append(trial)
    found = []
    for group in groups.values():
        fine = _one_per_seed([t for t in group if study.feasible[t.index] and not bad[t.index]])
        if fine:
            failed = tuple(t for t in group if bad[t.index])
            found.append(Setting(tuple(fine), study.costs[[t.index for t in fine]], failed))
    return found


def key(trial: Trial) -> tuple[tuple[str, str], ...]:
    """Return a key that identifies the trial's setting: hyperparameter names and values, rounded to seven digits."""
    return tuple(sorted((name, _rounded(value)) for name, value in trial.params.items()))


def _rounded(value: Value) -> str:
    return f"{float(value):.7g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _one_per_seed(trials: Sequence[Trial]) -> list[Trial]:
    first = {t.seed: t.index for t in reversed(trials)}
    return [t for t in trials if t.seed is None or first[t.seed] == t.index]


def trial_variance(tried: Sequence[Setting]) -> tuple[float, int] | None:
    """Return (standard deviation between seeds, degrees of freedom) over all repeated settings; None without repeats."""
    return difference.pooled([s.costs for s in tried])


def noun(tried: Sequence[Setting]) -> str:
    """Return the noun for a repeat: `seed` if every repeated trial logged its seed, else `run` (for example, for folds)."""
    repeated = [t for s in tried if len(s.trials) > 1 for t in s.trials]
    return "seed" if repeated and all(t.seed is not None for t in repeated) else "run"
