"""Whether what is needed to reach a target grows with a size: a permutation test of groups of repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray

Statistic = Literal["median", "least"]
_DRAWS = 999
_ENTRIES = 200_000
"""Numbers to draw at most, so that thousands of repeats take no longer than hundreds."""


class Scaling(NamedTuple):
    """What each group needs, against the first group."""

    levels: FloatArray
    """Shape (groups,): median, or least, of each group's values; infinite where it never got there."""
    ratio: float
    """The largest level over the first one."""
    p: float
    """How often groups that need the same would seem to differ as much."""


def scaling(groups: Sequence[FloatArray], statistic: Statistic) -> Scaling:
    """Whether later groups need more than the first one; groups of positive values, shape (n,) each, n >= 1; infinite: not reached.

    The values are dealt to the groups anew, with a fixed seed: under the null hypothesis, all of them could belong to any.
    """
    values = np.concatenate(groups)
    ends = np.cumsum([len(g) for g in groups]).tolist()
    levels = _levels(values[None, :], ends, statistic)[0]
    draws = min(_DRAWS, max(_ENTRIES // len(values), 199))
    ranks = values[None, :] if statistic == "least" else stats.rankdata(values)[None, :]
    dealt = np.random.default_rng(0).permuted(np.tile(ranks, (draws, 1)), axis=1)
    observed, chance = (_contrast(r, ends, statistic) for r in (ranks, dealt))
    p = (1 + np.sum(chance >= observed[0] * (1 - 1e-12))) / (draws + 1)
    return Scaling(levels, _ratio(levels[None, :])[0].item(), float(p))


def _contrast(values: FloatArray, ends: list[int], statistic: Statistic) -> FloatArray:
    """How much more the neediest of the later groups needs, shape (rows,): of repeats by their mean rank, which sees them all."""
    if statistic == "least":
        return _ratio(_levels(values, ends, statistic))
    return _ratio(np.stack([part.mean(axis=1) for part in np.split(values, ends[:-1], axis=1)], axis=1))


def _levels(values: FloatArray, ends: list[int], statistic: Statistic) -> FloatArray:
    """Shape (rows, groups) of values (rows, n) in groups that end before `ends`."""
    parts = np.split(values, ends[:-1], axis=1)
    if statistic == "least":
        return np.stack([part.min(axis=1) for part in parts], axis=1)
    # The lower median: a mean of a finite and an infinite value would be infinite.
    return np.stack([np.partition(p, (p.shape[1] - 1) // 2, axis=1)[:, (p.shape[1] - 1) // 2] for p in parts], axis=1)


def _ratio(levels: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        ratios = levels[:, 1:].max(axis=1) / levels[:, 0]
    return np.asarray(np.nan_to_num(ratios, nan=1.0, posinf=np.inf), dtype=np.float64)
