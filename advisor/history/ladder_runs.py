"""Further runs that help to show whether the best learning rate moves with the model size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from advisor.model.frozen import FrozenModel
from advisor.model.prediction import significant
from advisor.model.space import FloatArray

SEEDS = 2
"""Number of new seeds for each of the rates. With one seed, the noise of a sweep is unknown."""
RATES = 5
"""Number of rates to repeat at a size: the best one and its neighbours on both sides."""

End = Literal["low", "high"]


class Runs(FrozenModel):
    """Further runs at one size."""

    size: float
    rates: tuple[float, ...]
    """Learning rates to run."""
    seeds: int
    """Number of new seeds for each of them."""


def further_runs(
    sizes: Sequence[float], points: Sequence[tuple[FloatArray, FloatArray]], ends: Sequence[End | None]
) -> tuple[Runs, ...]:
    """Return the runs, smallest size first. points: (log rates, costs) of each sweep; ends: the open end of each sweep.

    Sweeps with an open end get two rates beyond it. If there are none, every sweep gets new seeds around its best rate: the change
    over the sizes is as uncertain as the least certain of them, so repeating only the cheap sizes seldom decides. How often these
    runs decide is measured (`benchmarks/quality/ladder.py`) and not predicted: a sweep with one seed per rate does not show its
    noise, and stated uncertainties fall by less than with the root of the number of runs.
    """
    each = zip(sizes, points, ends, strict=True)
    if any(ends):
        return tuple(Runs(size=s, rates=_beyond(p[0], e), seeds=1) for s, p, e in each if e is not None)
    return tuple(Runs(size=s, rates=_around_best(*p), seeds=SEEDS) for s, p, _ in each)


def _around_best(log_rates: FloatArray, costs: FloatArray) -> tuple[float, ...]:
    """Return the tried rate with the best mean cost, and its neighbours."""
    tried = np.unique(log_rates)
    best = int(np.argmin([costs[log_rates == r].mean() for r in tried]))
    first = max(min(best - RATES // 2, len(tried) - RATES), 0)
    return tuple(significant(math.exp(r), 3) for r in tried[first : first + RATES])


def _beyond(log_rates: FloatArray, end: End) -> tuple[float, ...]:
    """Return two rates beyond the end of a sweep, as far apart as its rates are."""
    tried = np.unique(log_rates)
    step = max(float(np.median(np.diff(tried))), math.log(1.5))
    start, sign = (tried[0], -1) if end == "low" else (tried[-1], 1)
    return tuple(significant(math.exp(start + sign * k * step), 3) for k in (1, 2))
