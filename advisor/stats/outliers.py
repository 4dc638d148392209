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
"""1 for a failed trial, -1 for the best trial, 0 for any other. Eight bits, for thousands of permutations."""

SEED = 0
NUMBER_OF_PERMUTATIONS = 4999
_BOTH_SIDES: tuple[RangeSide, ...] = ("low", "high")
_MAX_ENUMERATED_PERMUTATIONS = 6000


def chance_of_failed_share(failed: float, total: float, share: float) -> float:
    """Return the probability of a failure rate of `share` or more if `failed` of `total` trials failed (Jeffreys prior)."""
    return float(special.betaincc(failed + 0.5, total - failed + 0.5, share))


@dataclass(frozen=True)
class FailureRegion:
    """All values of a hyperparameter beyond a threshold at which trials fail."""

    axis: int
    side: RangeSide
    """End of the hyperparameter's range, low or high, that lies in the region."""
    edge_position: float
    """Position of the failed trial in the region that is closest to the trials outside."""
    nearest_outside_position: float
    """Position of the closest trial outside of the region that did not fail; NaN if there is none."""
    failed_count: int
    trial_count: int
    """Number of all trials in the region."""
    p_value: float
    """Probability that random labels of the trials yield a region, on any axis, that separates failed trials equally well."""

    def contains(self, positions: FloatArray) -> BoolArray:
        """Return a mask, shape (n,), of the positions on the region's axis that lie in the region."""
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

    positions: shape (n, d), NaN if a trial has no value on an axis. failed: mask, shape (n,). Without `purity`, a region
    separates failed trials as well as possible (Kolmogorov-Smirnov). With `purity`, a region contains as many failed trials as
    possible, but at least this share of its trials failed. best: index of the best trial. near: maximum distances on each axis,
    shape (d, 2); a region counts only if the best trial lies within `near[:, 0]` of the edge of the region, or is the nearest
    trial outside and lies within `near[:, 1]`. sides: ends of each axis to examine. The p-value is the share of permutations of
    the labels for which any region scores as high.
    """
    n, d = positions.shape
    m = int(failed.sum())
    if m in (0, n) or (best is not None and failed[best]):
        return []
    penalty = m / (n - m) if purity is None else purity / (1 - purity)
    labels = failed.astype(np.int8)
    if best is not None:
        labels[best] = -1
    permuted = _label_permutations(labels)
    scored, largest = [], np.zeros(len(permuted))
    for axis, side in [(i, side) for i in range(d) for side in (_BOTH_SIDES if sides is None else sides[i])]:
        u = positions[:, axis] if side == "high" else -positions[:, axis]
        order = np.argsort(u, kind="stable")
        order = order[np.isfinite(u[order])]
        if len(np.unique(u[order])) < 2:
            continue
        max_distances = (near[axis, 0], near[axis, 1]) if best is not None and near is not None else None
        sorted_u = u[order]
        largest = np.maximum(largest, _best_failure_region(permuted[:, order], sorted_u, penalty, max_distances)[0])
        score, cut = _best_failure_region(labels[order][None, :], sorted_u, penalty, max_distances)
        if score[0] > 0:
            region = _failure_region(axis, side, positions[order, axis], failed[order], int(cut[0]))
            scored.append((float(score[0]), region))
    scored.sort(key=lambda item: (-item[0], item[1].axis, item[1].side))
    return [replace(region, p_value=float(np.mean(largest >= score - 1e-9))) for score, region in scored]


def find_failures_at_both_ends(positions: FloatArray, failed: BoolArray) -> tuple[FailureRegion, FailureRegion] | None:
    """Return the regions at the low and at the high end of an axis that together separate failed trials best; None if trials
    fail at one end only. positions: (n,), NaN if a trial lacks the axis; failed: (n,).

    Failures at one end count against a threshold at the other end, so neither threshold alone is clear. The p-value of both is
    the share of permutations of the labels for which two regions score as high."""
    known = np.isfinite(positions)
    u, bad = positions[known], failed[known]
    n, m = len(u), int(bad.sum())
    if m in (0, n) or len(np.unique(u)) < 2:
        return None
    table, penalty = _label_permutations(bad.astype(np.int8)), m / (n - m)
    total, regions = np.zeros(len(table)), []
    observed = 0.0
    for side in _BOTH_SIDES:
        signed = u if side == "high" else -u
        order = np.argsort(signed, kind="stable")
        total += _best_failure_region(table[:, order], signed[order], penalty, None)[0]
        score, cut = _best_failure_region(bad[order].astype(np.int8)[None, :], signed[order], penalty, None)
        if not score[0] > 0:
            return None
        observed += float(score[0])
        regions.append(_failure_region(0, side, u[order], bad[order], int(cut[0])))
    p = float(np.mean(total >= observed - 1e-9))
    low, high = (replace(region, p_value=p) for region in regions)
    return (low, high) if low.edge_position < high.edge_position else None


def _best_failure_region(
    labels: _TrialLabels, positions: FloatArray, penalty: float, max_distances: tuple[float, float] | None
) -> tuple[FloatArray, IntArray]:
    """Return (score, first index) of the best region at the high end for each row of labels. positions: shape (n,), ascending."""
    label_weights = np.where(labels == 1, 1.0, -penalty)
    scores = np.cumsum(label_weights[:, ::-1], axis=1)[:, ::-1]
    scores[:, 0] = -np.inf  # exclude the region of all trials
    scores[:, 1:][:, positions[1:] <= positions[:-1]] = -np.inf  # exclude regions that separate equal values
    cut = scores.argmax(1)
    best_scores = np.maximum(scores[np.arange(len(scores)), cut], 0)
    if max_distances is not None:
        best_position = positions[(labels == -1).argmax(1)]
        is_best_known = (labels == -1).any(1)
        gap = positions[cut] - best_position
        distance_outside = gap - (positions[cut] - positions[np.maximum(cut - 1, 0)])
        is_region_close = (gap > 0) & ((gap <= max_distances[0]) | ((distance_outside <= 1e-12) & (gap <= max_distances[1])))
        best_scores = np.where(is_best_known & is_region_close, best_scores, 0)
    return best_scores, cut


def _failure_region(axis: int, side: RangeSide, positions: FloatArray, has_failed: BoolArray, cut: int) -> FailureRegion:
    outside_positions = positions[:cut][~has_failed[:cut]]
    failed_positions = positions[cut:][has_failed[cut:]]
    return FailureRegion(
        axis=axis,
        side=side,
        edge_position=float(failed_positions[0]) if len(failed_positions) else float(positions[cut]),
        nearest_outside_position=float(outside_positions[-1]) if len(outside_positions) else math.nan,
        failed_count=int(has_failed[cut:].sum()),
        trial_count=len(has_failed) - cut,
        p_value=1.0,
    )


def _label_permutations(labels: _TrialLabels) -> _TrialLabels:
    """Return permutations of the labels, shape (rows, n): all permutations or the observed order and random ones."""
    n, m = len(labels), int((labels == 1).sum())
    has_best = 1 if (labels == -1).any() else 0
    if math.comb(n - has_best, m) * (n if has_best else 1) <= _MAX_ENUMERATED_PERMUTATIONS:
        label_rows = []
        for first in range(n) if has_best else [None]:
            for subset in combinations((i for i in range(n) if i != first), m):
                row = np.zeros(n, dtype=np.int8)
                row[list(subset)] = 1
                if first is not None:
                    row[first] = -1
                label_rows.append(row)
        return np.array(label_rows)
    draw_count = NUMBER_OF_PERMUTATIONS if n <= 200 else 1999 if n <= 400 else 999
    shuffled_labels = np.random.default_rng(SEED).permuted(np.tile(np.sort(labels), (draw_count, 1)), axis=1)
    return np.vstack([labels, shuffled_labels])
