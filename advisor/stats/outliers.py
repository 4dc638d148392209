"""Finds thresholds of hyperparameters beyond which trials fail."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from advisor.model.space import BoolArray, FloatArray, IntArray, RangeSide

_TrialLabels: TypeAlias = NDArray[np.int8]
"""1 for a failed trial, -1 for the best one, 0 for any other; eight bits each, because thousands of permutations are stored."""

SEED = 0
NUMBER_OF_PERMUTATIONS = 4999
_BOTH_SIDES: tuple[RangeSide, ...] = ("low", "high")
_MAX_ENUMERATED_PERMUTATIONS = 6000


def chance_of_failed_share(failed: float, total: float, share: float) -> float:
    """Return the probability that the failure rate is `share` or more if `failed` of `total` trials failed (Jeffreys prior)."""
    return float(special.betaincc(failed + 0.5, total - failed + 0.5, share))


@dataclass(frozen=True)
class FailureRegion:
    """All values of a hyperparameter beyond a threshold at which trials fail."""

    axis: int
    side: RangeSide
    """End of the hyperparameter's range, low or high, that lies in the region."""
    edge_position: float
    """Position of its failed trial closest to the trials outside."""
    nearest_outside_position: float
    """Position of the closest trial outside that did not fail; NaN if there is none."""
    failed_count: int
    trial_count: int
    """Number of all trials in the region."""
    p_value: float
    """Probability that labels at random yield a region, on any axis, that separates failed trials equally well."""

    def contains(self, positions: FloatArray) -> BoolArray:
        """Return a mask (n,) of the positions on the region's axis that lie in the region."""
        return np.asarray(positions >= self.edge_position if self.side == "high" else positions <= self.edge_position)


def find_failure_regions(
    positions: FloatArray,
    failed: BoolArray,
    *,
    purity: float | None = None,
    best: int | None = None,
    near: FloatArray | None = None,
    sides: tuple[tuple[RangeSide, ...], ...] | None = None,
) -> list[FailureRegion]:
    """Return the regions beyond a threshold in which trials fail, lowest p-value first, at most one per axis and end.

    positions: (n, d), NaN if a trial lacks the axis; failed: (n,). Without `purity`, a region separates failed trials as well
    as possible (Kolmogorov-Smirnov); with it, it contains as many as possible, and at least this share of its trials failed.
    best, near: a region counts only if the trial with index `best` lies within `near[:, 0]`, (d, 2), of its edge, or is the
    nearest trial outside and within `near[:, 1]`. sides: ends of each axis to examine. The p-value is the share of permutations
    of the labels for which any region scores as high.
    """
    n, d = positions.shape
    m = int(failed.sum())
    if m in (0, n) or (best is not None and failed[best]):
        return []
    penalty = m / (n - m) if purity is None else purity / (1 - purity)
    labels = failed.astype(np.int8)
    if best is not None:
        labels[best] = -1
    table = _label_permutations(labels)
    scored, largest = [], np.zeros(len(table))
    for axis, side in [(i, side) for i in range(d) for side in (_BOTH_SIDES if sides is None else sides[i])]:
        u = positions[:, axis] if side == "high" else -positions[:, axis]
        order = np.argsort(u, kind="stable")
        order = order[np.isfinite(u[order])]
        if len(np.unique(u[order])) < 2:
            continue
        max_distances = (near[axis, 0], near[axis, 1]) if best is not None and near is not None else None
        largest = np.maximum(largest, _best_failure_region(table[:, order], u[order], penalty, max_distances)[0])
        score, cut = _best_failure_region(labels[order][None, :], u[order], penalty, max_distances)
        if score[0] > 0:
            scored.append((float(score[0]), _failure_region(axis, side, positions[order, axis], failed[order], int(cut[0]))))
    scored.sort(key=lambda item: (-item[0], item[1].axis, item[1].side))
    return [replace(region, p_value=float(np.mean(largest >= score - 1e-9))) for score, region in scored]


def _best_failure_region(
    labels: _TrialLabels, positions: FloatArray, penalty: float, max_distances: tuple[float, float] | None
) -> tuple[FloatArray, IntArray]:
    """Return (score, first index) of the best region at the high end for each row of labels; positions: (n,), ascending."""
    weights = np.where(labels == 1, 1.0, -penalty)
    sums = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
    sums[:, 0] = -np.inf  # exclude the region of all trials
    sums[:, 1:][:, positions[1:] <= positions[:-1]] = -np.inf  # exclude regions that separate equal values
    cut = sums.argmax(1)
    score = np.maximum(sums[np.arange(len(sums)), cut], 0)
    if max_distances is not None:
        best = positions[(labels == -1).argmax(1)]
        present = (labels == -1).any(1)
        gap = positions[cut] - best
        distance_outside = gap - (positions[cut] - positions[np.maximum(cut - 1, 0)])
        close = (gap > 0) & ((gap <= max_distances[0]) | ((distance_outside <= 1e-12) & (gap <= max_distances[1])))
        score = np.where(present & close, score, 0)
    return score, cut


def _failure_region(axis: int, side: RangeSide, positions: FloatArray, has_failed: BoolArray, cut: int) -> FailureRegion:
    outside = positions[:cut][~has_failed[:cut]]
    failed_positions = positions[cut:][has_failed[cut:]]
    return FailureRegion(
        axis=axis,
        side=side,
        edge_position=float(failed_positions[0]) if len(failed_positions) else float(positions[cut]),
        nearest_outside_position=float(outside[-1]) if len(outside) else math.nan,
        failed_count=int(has_failed[cut:].sum()),
        trial_count=len(has_failed) - cut,
        p_value=1.0,
    )


def _label_permutations(labels: _TrialLabels) -> _TrialLabels:
    """Return permutations of the labels, (rows, n): all if few, else the observed order and random ones."""
    n, m = len(labels), int((labels == 1).sum())
    has_best = 1 if (labels == -1).any() else 0
    if math.comb(n - has_best, m) * (n if has_best else 1) <= _MAX_ENUMERATED_PERMUTATIONS:
        rows = []
        for first in range(n) if has_best else [None]:
            for subset in combinations((i for i in range(n) if i != first), m):
                row = np.zeros(n, dtype=np.int8)
                row[list(subset)] = 1
                if first is not None:
                    row[first] = -1
                rows.append(row)
        return np.array(rows)
    draws = NUMBER_OF_PERMUTATIONS if n <= 200 else 1999 if n <= 400 else 999
    shuffled = np.random.default_rng(SEED).permuted(np.tile(np.sort(labels), (draws, 1)), axis=1)
    return np.vstack([labels, shuffled])
