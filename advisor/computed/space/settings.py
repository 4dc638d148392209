"""The distinct hyperparameter settings of a study, as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.computed import computed
from advisor.computed.space import failures
from advisor.model.finding import MissingData
from advisor.model.space import BoolArray, FloatArray, Value
from advisor.model.study import Study, Trial


@dataclass(frozen=True)
class Settings:
    """The n distinct settings that a study tried. Repeats of a setting with other seeds are pooled: they are one observation."""

    trials: tuple[tuple[Trial, ...], ...]
    costs: FloatArray
    """Lower median cost of each setting's successful trials, shape (n,); NaN if at least half of the setting's trials failed."""
    failed: BoolArray
    """Whether at least half of the trials of a setting diverged, crashed or learned nothing; shape (n,)."""
    numeric: dict[str, FloatArray]
    """Position of each setting in the range of each searched number, shape (n,); NaN if a setting lacks that number."""
    choices: dict[str, FloatArray]
    """Index of each setting's choice over the last index, by searched category, shape (n,); NaN if a setting lacks it."""

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def successes(self) -> int:
        """Number of settings that have a result."""
        return int((~self.failed).sum())

    def require(self, settings: int, successes: int) -> None:
        """Raise MissingData if fewer than `settings` settings ended or fewer than `successes` have a result."""
        if len(self) < settings or self.successes < successes:
            raise MissingData(
                f"{len(self)} distinct settings ended, {self.successes} of them with a result; "
                f"at least {settings} are needed, {successes} of them with a result",
                needs="trials",
                at_least=settings,
            )


@computed
def read(study: Study) -> Settings:
    """Return the settings of the ended trials, in an order that is independent of when they ran."""
    failed = failures.failures(study).any
    pools: dict[tuple[Value, ...], list[Trial]] = {}
    for trial in study.trials:
        # A pruned trial is censored: its result at full length is unknown, and it did not fail.
        if study.ended[trial.index] and (study.comparable[trial.index] or not study.feasible[trial.index]):
            pools.setdefault(tuple(trial.params.get(name, "") for name in study.searched), []).append(trial)
    rows = [_pool(group, study.costs, failed) for group in pools.values()]
    first = [group[0] for group in pools.values()]
    positions = {name: study.positions(name, first) for name in study.searched}
    costs = np.array([cost for cost, _ in rows])
    order = np.lexsort((*positions.values(), costs)) if rows else np.empty(0, np.int64)
    groups = list(pools.values())
    numeric = {n: positions[n][order] for n, p in study.searched.items() if p.numeric}
    return Settings(
        trials=tuple(tuple(groups[i]) for i in order),
        costs=costs[order],
        failed=np.array([bad for _, bad in rows], dtype=np.bool_)[order],
        numeric=numeric,
        choices={n: positions[n][order] for n in positions if n not in numeric},
    )


def _pool(group: list[Trial], costs: FloatArray, failed: BoolArray) -> tuple[float, bool]:
    index = np.array([t.index for t in group])
    bad = failed[index] | ~np.isfinite(costs[index])
    if 2 * bad.sum() >= len(index):
        return math.nan, True
    fine = np.sort(costs[index][~bad])
    return float(fine[(len(fine) - 1) // 2]), False
