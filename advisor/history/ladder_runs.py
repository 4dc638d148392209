"""The cheapest further runs that should show whether the best learning rate moves with the model size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from advisor.model.frozen import FrozenModel
from advisor.model.prediction import significant
from advisor.model.space import FloatArray
from advisor.stats.extrapolation import rate_trend

MAX_BLOCKS = 20
"""Maximum number of blocks of runs to advise; more are not affordable."""
BLOCK = 3
"""Number of runs in a block: the best rate and its neighbours, with another seed."""
_POWER = 2.8
"""Standard errors by which a shift must exceed the tested one, to be shown at the 5 % level in 80 % of cases."""

End = Literal["low", "high"]


class Runs(FrozenModel):
    """Further runs at one size."""

    size: float
    rates: tuple[float, ...]
    """Learning rates to run."""
    seeds: int
    """Number of new seeds for each of them."""


def cheapest_runs(
    sizes: FloatArray,
    costs: FloatArray,
    variances: FloatArray,
    points: Sequence[tuple[FloatArray, FloatArray]],
    ends: Sequence[End | None],
    shift: float,
    same: float,
) -> tuple[Runs, ...]:
    """Return the runs, smallest size first; empty if no affordable number of them decides.

    costs: cost of a run at each size; variances: of the log of each best rate; points: (log rates, costs) of each sweep; ends: the
    open end of each sweep; shift: the log of the best rate's change so far; same: log of the largest change that does not matter.
    A sweep with an open end gets two rates beyond it. Otherwise, blocks are added where they lower the variance of the shift most
    for their cost, until the answer is known with a probability of 80 % if the best rate does not move (for a shift below half of
    `same`) or moves as much as it seems to. This is optimistic: see `benchmarks/quality/ladder.py`.
    """
    if any(ends):
        opened = zip(sizes, points, ends, strict=True)
        return tuple(Runs(size=float(s), rates=_beyond(p[0], e), seeds=1) for s, p, e in opened if e is not None)
    rates = [_around_best(*p) for p in points]
    runs = np.array([np.isin(np.round(p[0], 6), np.round(r, 6)).sum() for p, r in zip(points, rates, strict=True)])
    blocks = np.zeros(len(sizes))
    target = (same if abs(shift) < same / 2 else abs(shift)) / _POWER
    while (error := _error(sizes, _shrunk(variances, runs, blocks))) > target:
        if blocks.sum() >= MAX_BLOCKS:
            return ()
        more = [blocks + extra for extra in np.eye(len(sizes))]
        gains = [error - _error(sizes, _shrunk(variances, runs, m)) for m in more]
        blocks = more[int(np.argmax(np.array(gains) / costs))]
    if not blocks.any():  # the interval is narrow, but its middle lies near a limit
        blocks[0] = 1
    tidy = [tuple(significant(math.exp(r), 3) for r in rs) for rs in rates]
    return tuple(Runs(size=float(s), rates=t, seeds=int(b)) for s, t, b in zip(sizes, tidy, blocks, strict=True) if b)


def _error(sizes: FloatArray, variances: FloatArray) -> float:
    """Return the standard deviation of the shift of the trend from the smallest to the largest size."""
    known = rate_trend(np.log(sizes), np.zeros(len(sizes)), variances, math.log(sizes[-1]) + 1).known
    return float(np.std(known[:, -1] - known[:, 0]))


def _shrunk(variances: FloatArray, runs: FloatArray, blocks: FloatArray) -> FloatArray:
    """Return the variances of the best rates after these blocks: in proportion to the number of runs near the best rate."""
    return np.asarray(variances * runs / (runs + BLOCK * blocks), dtype=np.float64)


def _around_best(log_rates: FloatArray, costs: FloatArray) -> FloatArray:
    """Return the tried log rate with the best mean cost, and its neighbours."""
    tried = np.unique(log_rates)
    best = int(np.argmin([costs[log_rates == r].mean() for r in tried]))
    first = min(max(best - 1, 0), len(tried) - BLOCK)
    return np.asarray(tried[first : first + BLOCK], dtype=np.float64)


def _beyond(log_rates: FloatArray, end: End) -> tuple[float, ...]:
    """Return two rates beyond the end of a sweep, as far apart as its rates are."""
    tried = np.unique(log_rates)
    step = max(float(np.median(np.diff(tried))), math.log(1.5))
    start, sign = (tried[0], -1) if end == "low" else (tried[-1], 1)
    return tuple(significant(math.exp(start + sign * k * step), 3) for k in (1, 2))
