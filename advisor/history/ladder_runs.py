"""Further runs that help to show if the best learning rate moves with the model size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from advisor.model.frozen import FrozenModel
from advisor.model.prediction import round_significant
from advisor.model.space import FloatArray

SEEDS = 2
"""Number of new seeds for each repeated rate. A sweep with one seed per rate does not show its noise."""
RATES = 5
"""Number of rates to repeat at a size: the best one and its neighbours on both sides."""

End = Literal["low", "high"]


class FurtherRuns(FrozenModel):
    """Further runs at one size."""

    size: float
    rates: tuple[float, ...]
    """Learning rates to run."""
    seeds: int
    """Number of new seeds for each of these rates."""


def further_runs(
    sizes: Sequence[float], points: Sequence[tuple[FloatArray, FloatArray]], ends: Sequence[End | None]
) -> tuple[FurtherRuns, ...]:
    """Return the runs, smallest size first. points: (log rates, costs) of each sweep; ends: the open end of each sweep.

    Sweeps with an open end get two rates beyond it. If no sweep has an open end, every sweep gets new seeds around its best
    rate: the least certain size determines the uncertainty of the change over the sizes, so repeating only the cheap sizes
    seldom decides. `benchmarks/quality/ladder.py` measures how often these runs decide. We do not predict this: a sweep with one
    seed per rate does not show its noise, and the uncertainty falls more slowly than with the square root of the number of runs.
    """
    each = zip(sizes, points, ends, strict=True)
    if any(ends):
        return tuple(
            FurtherRuns(size=s, rates=_rates_beyond_end(p[0], e), seeds=1) for s, p, e in each if e is not None
        )
    return tuple(FurtherRuns(size=s, rates=_rates_around_best(*p), seeds=SEEDS) for s, p, _ in each)


def _rates_around_best(log_rates: FloatArray, costs: FloatArray) -> tuple[float, ...]:
    """Return the tried rate with the best mean cost, and its neighbours."""
    tried = np.unique(log_rates)
    best = int(np.argmin([costs[log_rates == r].mean() for r in tried]))
    first = max(min(best - RATES // 2, len(tried) - RATES), 0)
    return tuple(round_significant(math.exp(r), 3) for r in tried[first : first + RATES])


def _rates_beyond_end(log_rates: FloatArray, end: End) -> tuple[float, ...]:
    """Return two rates beyond the end of a sweep, with the same spacing as in the sweep."""
    tried = np.unique(log_rates)
    step = max(float(np.median(np.diff(tried))), math.log(1.5))
    start, sign = (tried[0], -1) if end == "low" else (tried[-1], 1)
    return tuple(round_significant(math.exp(start + sign * k * step), 3) for k in (1, 2))
