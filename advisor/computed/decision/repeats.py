"""Settings and their repeats with other seeds: what a study knows of its trial variance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.computed.space import failures
from advisor.model.space import FloatArray, Value
from advisor.model.study import Study, Trial
from advisor.stats import difference


@dataclass(frozen=True)
class Setting:
    """One setting of the hyperparameters and the trials that ran it."""

    trials: tuple[Trial, ...]
    """Those that ended with a result and did not fail, one a seed, in the order of their start."""
    costs: FloatArray
    """Best cost of each of them, shape (n,)."""
    failed: tuple[Trial, ...]
    """Those that diverged, crashed or got nowhere."""

    @property
    def mean(self) -> float:
        """Mean cost over the repeats."""
        return float(np.mean(self.costs))

    @property
    def params(self) -> Mapping[str, Value]:
        """The hyperparameters."""
        return self.trials[0].params


def settings(study: Study, trials: Sequence[Trial] | None = None) -> list[Setting]:
    """The settings with at least one result, in the order in which they were first tried.

    Numbers that differ by less than a millionth are one: they pass through text and 32-bit floats. A second trial with a known
    seed that the setting already had is no repeat and is left out.
    """
    bad = failures.failures(study).any
    groups: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in in_order(study.trials if trials is None else trials):
        if study.ended[trial.index]:
            groups.setdefault(key(trial), []).append(trial)
    found = []
    for group in groups.values():
        fine = _one_a_seed([t for t in group if study.feasible[t.index] and not bad[t.index]])
        if fine:
            failed = tuple(t for t in group if bad[t.index])
            found.append(Setting(tuple(fine), study.costs[[t.index for t in fine]], failed))
    return found


def in_order(trials: Sequence[Trial]) -> list[Trial]:
    """The trials in the order of their start; as they come where starts are unknown or the same."""
    return sorted(trials, key=lambda t: (t.started or 0.0, t.index))


def key(trial: Trial) -> tuple[tuple[str, str], ...]:
    """What trials of one setting have in common, whatever its type: names and values to seven digits."""
    return tuple(sorted((name, _rounded(value)) for name, value in trial.params.items()))


def _rounded(value: Value) -> str:
    return f"{float(value):.7g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _one_a_seed(trials: Sequence[Trial]) -> list[Trial]:
    seen: set[int] = set()
    kept = []
    for trial in trials:
        if trial.seed is None or trial.seed not in seen:
            kept.append(trial)
        if trial.seed is not None:
            seen.add(trial.seed)
    return kept


def trial_variance(tried: Sequence[Setting]) -> tuple[float, int] | None:
    """(standard deviation from seed to seed, degrees of freedom) over all repeated settings; None where none was repeated."""
    return difference.pooled([s.costs for s in tried])


def noun(tried: Sequence[Setting]) -> str:
    """What the repeats of settings differ in, in one word: `seed` where all of them noted theirs, else `run`, as of folds."""
    repeated = [t for s in tried if len(s.trials) > 1 for t in s.trials]
    return "seed" if repeated and all(t.seed is not None for t in repeated) else "run"
