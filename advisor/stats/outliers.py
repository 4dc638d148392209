"""Failed trials: which trials failed, and beyond which value of a hyperparameter they fail."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from advisor.model.space import BoolArray, FloatArray, IntArray

Side: TypeAlias = Literal["low", "high"]
_Labels: TypeAlias = NDArray[np.int8]
"""Label of each trial: 1 for a failed trial, -1 for the best trial, 0 for others. Eight bits, because there are thousands of
permutations of thousands of trials.
"""

SEED = 0
PERMUTATIONS = 4999
_BOTH: tuple[Side, ...] = ("low", "high")
_MAX_EXACT = 6000
"""Maximum number of permutations to enumerate."""


def stuck(costs: FloatArray, starts: FloatArray, feasible: BoolArray, worse: BoolArray) -> BoolArray:
    """Return a mask (n,) of the trials that learned nothing: no better than a start, and worse in training or separate.

    costs, starts: (n,), NaN where unknown. worse: mask (n,) of trials whose training loss ended well above its beginning. A trial
    must be no better than its own first evaluation or than the highest first evaluation of the study; the latter, because if most
    learning happens before the first evaluation, noise looks like a gain. Separate means by a gap wider than the range of all
    trials that learned, so results that degrade gradually do not count. At least 4 trials must have learned.
    """
    none = np.zeros(len(costs), dtype=np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        gain = starts - costs
        known = feasible & np.isfinite(starts)
        highest = np.max(starts, where=known, initial=-np.inf)
        # 2 % of the best gain, because first evaluations are noisy and the minimum of many noisy values looks like progress.
        past_own = gain > 0.02 * np.max(gain, where=known, initial=0)
        past_any = highest - costs > 0.02 * np.max(highest - costs, where=known, initial=0)
        idle, learned = known & ~(past_own & past_any), known & past_own & past_any
        if learned.sum() < 4 or not idle.any():
            return none
        worst = costs[learned].max()
        spread = worst - costs[learned].min()
        return np.asarray(idle & (worse | (costs - worst > spread)), dtype=np.bool_)


def chance_of_share(failed: int, total: int, share: float) -> float:
    """Return the probability that a share >= `share` of further trials fails, after `failed` of `total` did (Jeffreys' prior)."""
    return float(special.betaincc(failed + 0.5, total - failed + 0.5, share))


# --- beyond which value do trials fail? -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """A region of one axis, on one side of a threshold, in which trials fail."""

    axis: int
    side: Side
    """End of the axis that the region includes."""
    edge: float
    """Position of the region's failed trial that is nearest to the trials outside."""
    inside: float
    """Position of the nearest trial outside the region; NaN if all trials lie in the region."""
    failed: int
    """Number of failed trials in the region."""
    total: int
    """Number of all trials in the region."""
    p: float
    """p-value: probability that chance alone gives as clear a region on any axis and side."""


def regions(
    positions: FloatArray,
    failed: BoolArray,
    *,
    purity: float | None = None,
    best: int | None = None,
    near: FloatArray | None = None,
    sides: tuple[tuple[Side, ...], ...] | None = None,
) -> list[Region]:
    """Return regions on one side of a threshold where trials fail, most certain first; at most one per axis and side.

    positions: (n, d), NaN where a trial lacks the axis; failed: (n,). With `purity` None a region separates failed from other
    trials as well as possible (Kolmogorov-Smirnov statistic); with a purity it holds as many failed trials as possible, at least
    that share of its trials. With `best`, the index of the best trial, and `near`, (d, 2) distances, a region counts only if the
    best trial lies within the first distance of its edge, or is the next one outside it and within the second. sides: the ends of
    each axis to examine. The p-value is the share of arrangements of the labels, all or random ones, in which some region scores
    as high.
    """
    n, d = positions.shape
    m = int(failed.sum())
    if m in (0, n) or (best is not None and failed[best]):
        return []
    penalty = m / (n - m) if purity is None else purity / (1 - purity)
    labels = failed.astype(np.int8)
    if best is not None:
        labels[best] = -1
    table = _arrangements(labels)
    scored, largest = [], np.zeros(len(table))
    for axis, side in [(i, side) for i in range(d) for side in (_BOTH if sides is None else sides[i])]:
        u = positions[:, axis] if side == "high" else -positions[:, axis]
        order = np.argsort(np.where(np.isnan(u), -np.inf, u), kind="stable")
        order = order[np.isfinite(u[order])]
        if len(np.unique(u[order])) < 2:
            continue
        limits = (near[axis, 0], near[axis, 1]) if best is not None and near is not None else None
        largest = np.maximum(largest, _scan(table[:, order], u[order], penalty, limits)[0])
        score, cut = _scan(labels[order][None, :], u[order], penalty, limits)
        if score[0] > 0:
            scored.append((float(score[0]), _region(axis, side, positions[order, axis], failed[order], int(cut[0]))))
    scored.sort(key=lambda item: (-item[0], item[1].axis, item[1].side))
    return [replace(region, p=float(np.mean(largest >= score - 1e-9))) for score, region in scored]


def _scan(
    labels: _Labels, positions: FloatArray, penalty: float, near: tuple[float, float] | None
) -> tuple[FloatArray, IntArray]:
    """Return, for each row of labels (rows, n), the best score of a region at the high end and its start; positions (n,)
    ascending.
    """
    worth = np.where(labels == 1, 1.0, -penalty)
    sums = np.cumsum(worth[:, ::-1], axis=1)[:, ::-1]
    sums[:, 0] = -np.inf  # the region must not contain all trials
    sums[:, 1:][:, positions[1:] <= positions[:-1]] = -np.inf  # nor may it separate equal values
    cut = sums.argmax(1)
    score = np.maximum(sums[np.arange(len(sums)), cut], 0)
    if near is not None:
        at = positions[(labels == -1).argmax(1)]
        present = (labels == -1).any(1)
        gap = positions[cut] - at
        between = gap - (positions[cut] - positions[np.maximum(cut - 1, 0)])
        close = (gap > 0) & ((gap <= near[0]) | ((between <= 1e-12) & (gap <= near[1])))
        score = np.where(present & close, score, 0)
    return score, cut


def _region(axis: int, side: Side, positions: FloatArray, failed: BoolArray, cut: int) -> Region:
    inside = positions[:cut][~failed[:cut]]
    beyond = positions[cut:][failed[cut:]]
    return Region(
        axis=axis,
        side=side,
        edge=float(beyond[0]) if len(beyond) else float(positions[cut]),
        inside=float(inside[-1]) if len(inside) else math.nan,
        failed=int(failed[cut:].sum()),
        total=len(failed) - cut,
        p=1.0,
    )


def _arrangements(labels: _Labels) -> _Labels:
    """Return permutations of the labels, shape (rows, n): all of them if they are few, else the observed one and random ones."""
    n, m = len(labels), int((labels == 1).sum())
    singles = 1 if (labels == -1).any() else 0
    places = n if singles else 1
    if math.comb(n - singles, m) * places <= _MAX_EXACT:
        rows = []
        for first in range(places):
            rest = [i for i in range(n) if not singles or i != first]
            for chosen in combinations(rest, m):
                row = np.zeros(n, dtype=np.int8)
                row[list(chosen)] = 1
                if singles:
                    row[first] = -1
                rows.append(row)
        return np.array(rows)
    times = PERMUTATIONS if n <= 200 else 1999 if n <= 400 else 999
    mixed = np.random.default_rng(SEED).permuted(np.tile(np.sort(labels), (times, 1)), axis=1)
    return np.vstack([labels, mixed])
