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
    """The n distinct settings that a study tried. Repeats of a setting with other seeds are pooled: they are no new evidence."""

    trials: tuple[tuple[Trial, ...], ...]
    costs: FloatArray
    """Shape (n,): lower median cost of a setting's successful trials; NaN if at least half of its trials failed."""
    failed: BoolArray
    """Shape (n,): whether at least half of a setting's trials diverged, crashed or learned nothing."""
    numeric: dict[str, FloatArray]
    """Positions (n,) in the range of each searched number; NaN if a setting lacks it."""
    choices: dict[str, FloatArray]
    """The same for searched categories: the index of the choice over the last index."""

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def successes(self) -> int:
        """Number of settings with a result."""
        return int((~self.failed).sum())

    def require(self, settings: int, successes: int) -> None:
        """Raise MissingData if fewer settings than these ended, or fewer have a result."""
        if len(self) < settings or self.successes < successes:
            raise MissingData(
                f"{len(self)} distinct settings ended, {self.successes} of them with a result; "
                f"at least {settings} are needed, {successes} of them with a result"
            )


@computed
def read(study: Study) -> Settings:
    """Return the settings of the trials that ended, in an order that does not depend on when they ran."""
    failed = failures.failures(study).any
    pools: dict[tuple[Value, ...], list[Trial]] = {}
    for trial in study.trials:
        if study.ended[trial.index]:
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
