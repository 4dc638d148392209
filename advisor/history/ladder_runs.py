"""Proposes further runs that help to show whether the best learning rate changes with the model size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from advisor.model.frozen import FrozenModel
from advisor.model.prediction import round_significant
from advisor.model.space import FloatArray

N_NEW_SEEDS = 2
"""Number of new seeds for each repeated learning rate. A sweep with only one seed per learning rate does not show its noise
level."""
N_REPEATED_RATES = 5
"""Number of learning rates to repeat per model size: the best rate and its neighbours."""

SweepEnd = Literal["low", "high"]


class FurtherRuns(FrozenModel):
    """Further runs to do at one model size."""

    size: float
    rates: tuple[float, ...]
    """Learning rates of the further runs."""
    seeds: int
    """Number of new seeds for each learning rate in `rates`."""


def propose_further_runs(
    sizes: Sequence[float], points: Sequence[tuple[FloatArray, FloatArray]], ends: Sequence[SweepEnd | None]
) -> tuple[FurtherRuns, ...]:
    """Return the further runs, smallest model size first. points: (log learning rates, costs) of each sweep; ends: the open end
    of each sweep.

    The end of a sweep is open if the best learning rate may lie beyond it; such a sweep gets two further learning rates beyond
    the open end. If no end is open, every sweep gets new seeds around its best learning rate. Repeating only small, cheap
    models is seldom enough, because the least certain model size determines the uncertainty of the trend.
    `benchmarks/quality/ladder.py` measures how often such runs decide whether the best learning rate changes with the model
    size. We do not predict this frequency for two reasons: a sweep with one seed per rate does not show its noise, and the
    uncertainty shrinks more slowly than with the square root of the number of runs.
    """
    each = zip(sizes, points, ends, strict=True)
    if any(ends):
        return tuple(FurtherRuns(size=s, rates=_rates_beyond_end(p[0], e), seeds=1) for s, p, e in each if e is not None)
    return tuple(FurtherRuns(size=s, rates=_rates_around_best(*p), seeds=N_NEW_SEEDS) for s, p, _ in each)


def _rates_around_best(log_rates: FloatArray, costs: FloatArray) -> tuple[float, ...]:
    """Return the tried learning rate with the lowest mean cost, and its neighbours on both sides."""
    tried = np.unique(log_rates)
    best = int(np.argmin([costs[log_rates == r].mean() for r in tried]))
    first = max(min(best - N_REPEATED_RATES // 2, len(tried) - N_REPEATED_RATES), 0)
    return tuple(round_significant(math.exp(r), 3) for r in tried[first : first + N_REPEATED_RATES])


def _rates_beyond_end(log_rates: FloatArray, end: SweepEnd) -> tuple[float, ...]:
    """Return two learning rates beyond the end of a sweep, spaced as in the sweep."""
    tried = np.unique(log_rates)
    step = max(float(np.median(np.diff(tried))), math.log(1.5))
    start, sign = (tried[0], -1) if end == "low" else (tried[-1], 1)
    return tuple(round_significant(math.exp(start + sign * k * step), 3) for k in (1, 2))
