"""Tests by permutations whether the number of steps to reach a target grows with a size, such as the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.computed.batch.targets import LengthStatistic
from advisor.model.space import FloatArray

_MAX_PERMUTATIONS = 999
_MAX_RANDOM_NUMBERS = 200_000
"""Maximum number of random numbers to draw, which limits the run time for thousands of repeats."""


class StepsComparison(NamedTuple):
    """Numbers of steps that groups need to reach a target, compared with the first group."""

    group_levels: FloatArray
    """Median or minimum number of steps of each group, shape (groups,); infinite if the group did not reach the target."""
    largest_ratio: float
    """Largest number of steps of any group divided by that of the first group."""
    p_value: float
    """p-value: probability of a difference at least this large between groups that truly need equally many steps."""


def compare_steps(groups: Sequence[FloatArray], statistic: LengthStatistic) -> StepsComparison:
    """Test by permutations whether later groups need more steps than the first. groups: positive numbers of steps, (n,), n >=
    1, for each group; inf if the target was not reached."""
    values = np.concatenate(groups)
    ends = np.cumsum([len(g) for g in groups]).tolist()
    steps_of_groups = _group_levels(values[None, :], ends, statistic)[0]
    permutation_count = min(_MAX_PERMUTATIONS, max(_MAX_RANDOM_NUMBERS // len(values), 199))
    ranks = values[None, :] if statistic == "least" else stats.rankdata(values)[None, :]
    permuted_ranks = np.random.default_rng(0).permuted(np.tile(ranks, (permutation_count, 1)), axis=1)
    observed, permuted = (_test_statistic(r, ends, statistic) for r in (ranks, permuted_ranks))
    p = (1 + np.sum(permuted >= observed[0] * (1 - 1e-12))) / (permutation_count + 1)
    return StepsComparison(steps_of_groups, _largest_ratio_to_first(steps_of_groups[None, :])[0].item(), float(p))


def _test_statistic(values: FloatArray, ends: list[int], statistic: LengthStatistic) -> FloatArray:
    if statistic == "least":
        return _largest_ratio_to_first(_group_levels(values, ends, statistic))
    return _largest_ratio_to_first(np.stack([group.mean(axis=1) for group in np.split(values, ends[:-1], axis=1)], axis=1))


def _group_levels(values: FloatArray, ends: list[int], statistic: LengthStatistic) -> FloatArray:
    """Return the median or minimum of each group, (rows, groups), for values (rows, n) of groups that end before `ends`."""
    groups = np.split(values, ends[:-1], axis=1)
    if statistic == "least":
        return np.stack([group.min(axis=1) for group in groups], axis=1)
    # Use the lower median, because the mean of a finite and an infinite value would be infinite.
    return np.stack([np.partition(p, (p.shape[1] - 1) // 2, axis=1)[:, (p.shape[1] - 1) // 2] for p in groups], axis=1)


def _largest_ratio_to_first(levels: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        ratios = levels[:, 1:].max(axis=1) / levels[:, 0]
    return np.asarray(np.nan_to_num(ratios, nan=1.0, posinf=np.inf), dtype=np.float64)
