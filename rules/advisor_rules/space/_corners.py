"""Finds corners of the search space where trials fail. A corner lies beyond a threshold of each of two hyperparameters."""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from advisor.model.space import BoolArray, FloatArray, IntArray, RangeSide

SEED = 0
N_PERMUTATIONS = 999
_MAX_THRESHOLDS = 10
"""Maximum number of thresholds to try per axis and side; the thresholds are evenly spaced among the positions of the trials."""
_MAX_PAIRED_AXES = 12
"""Maximum number of axes whose pairs are examined; the work grows with the square of this number."""
_RANGE_SIDES: tuple[RangeSide, ...] = ("low", "high")


class FailureCorner(NamedTuple):
    """The part of the space beyond a threshold of each of two axes."""

    axes: tuple[int, int]
    sides: tuple[RangeSide, RangeSide]
    edge_positions: tuple[float, float]
    """Positions, on both axes, of the corner's failed trials that are nearest to the trials outside the corner."""
    inside: BoolArray
    corner_score: float
    """Log-likelihood ratio between a separate failure rate in the corner and one failure rate everywhere."""
    p: float
    """p-value of the score, corrected for the number of pairs of hyperparameters, sides and thresholds that were tried."""


def log_likelihood_ratio(inside: BoolArray, failed: BoolArray) -> float:
    """Return the log-likelihood ratio between a separate failure rate in the region and one rate everywhere."""
    return float(_log_likelihood_ratios(inside[None, :], failed[None, :])[0, 0])


def find_failure_corner(positions: FloatArray, failed: BoolArray, outside: IntArray | None = None) -> FailureCorner | None:
    """Return the corner that best separates failed trials from others; None if there are fewer than two axes, or if none or all
    of the trials failed.

    positions: (n, d), NaN if a trial lacks the axis; failed: (n,). At least half of the trials in the returned corner failed.
    `outside` holds the indices of trials that the corner must not contain. `outside` is ignored for permuted labels, so the
    p-value is conservative.
    """
    d = positions.shape[1]
    if d < 2 or failed.all() or not failed.any():
        return None
    rng = np.random.default_rng(SEED)
    labels = np.vstack([failed, rng.permuted(np.tile(failed, (N_PERMUTATIONS, 1)), axis=1)])
    halves = [[(side, m) for side in _RANGE_SIDES for m in _masks_beyond(positions[:, axis], side)] for axis in range(d)]
    is_examined = _choose_axes_to_pair(halves, labels)
    highest, best = np.zeros(len(labels)), 0.0
    corner: tuple[tuple[int, int], tuple[RangeSide, RangeSide], BoolArray] | None = None
    for axes in combinations(range(d), 2):
        rows = np.flatnonzero(is_examined[:, list(axes)].all(axis=1))
        pairs = list(product(*(halves[axis] for axis in axes)))
        if not len(rows) or not pairs:
            continue
        inside = np.array([first & second for (_, first), (_, second) in pairs])
        scores = _log_likelihood_ratios(inside, labels[rows])
        if rows[0] == 0 and outside is not None:
            scores[inside[:, outside].any(axis=1), 0] = 0
        highest[rows] = np.maximum(highest[rows], scores.max(axis=0))
        if rows[0] == 0 and scores[:, 0].max() > best:
            index = int(scores[:, 0].argmax())
            best, corner = float(scores[index, 0]), (axes, (pairs[index][0][0], pairs[index][1][0]), inside[index])
    if corner is None:
        return None
    axes, sides, mask = corner
    at = positions[mask & failed][:, axes].T
    first, second = (float(u.min() if side == "high" else u.max()) for u, side in zip(at, sides, strict=True))
    return FailureCorner(axes, sides, (first, second), mask, best, float(np.mean(highest >= best - 1e-9)))


def _choose_axes_to_pair(halves: list[list[tuple[RangeSide, BoolArray]]], labels: BoolArray) -> BoolArray:
    """Return a mask (k, axes) of the axes whose pairs are examined, for each row of labels (k, n): the axes that separate
    failed trials best on their own. The choice is repeated for each row of permuted labels, so it does not distort the
    p-value."""
    if len(halves) <= _MAX_PAIRED_AXES:
        return np.ones((len(labels), len(halves)), dtype=np.bool_)
    axis_scores = np.zeros((len(labels), len(halves)))
    for axis, half in enumerate(halves):
        if half:
            axis_scores[:, axis] = _log_likelihood_ratios(np.array([mask for _, mask in half]), labels).max(axis=0)
    ranks = np.argsort(np.argsort(-axis_scores, axis=1, kind="stable"), axis=1)
    return np.asarray(ranks < _MAX_PAIRED_AXES, dtype=np.bool_)


def _masks_beyond(at: FloatArray, side: RangeSide) -> list[BoolArray]:
    distinct = np.unique(at[np.isfinite(at)])
    if len(distinct) < 2:
        return []
    thresholds = distinct[np.unique(np.linspace(0, len(distinct) - 1, _MAX_THRESHOLDS + 2).round().astype(int))[1:-1]]
    return [(at >= t if side == "high" else at <= t) for t in thresholds]


def _log_likelihood_ratios(inside: BoolArray, failed: BoolArray) -> FloatArray:
    """Return the log-likelihood ratio for each region (r, n) and each row of labels (k, n), shape (r, k); 0 if fewer than half
    of the trials in the region failed."""
    total = inside.sum(1, keepdims=True).astype(float)
    bad = np.asarray(inside.astype(np.float32) @ failed.T.astype(np.float32), dtype=np.float64)
    n, m = inside.shape[1], failed.sum(1).astype(float)
    scores = np.zeros(bad.shape)
    region, labels = np.nonzero((2 * bad >= total) & (total > 0))  # usually few regions contain that many failed trials
    b, t, of = bad[region, labels], total[region, 0], m[labels]
    scores[region, labels] = _log_likelihood(b, t) + _log_likelihood(of - b, n - t) - _log_likelihood(of, np.array(float(n)))
    return scores


def _log_likelihood(bad: FloatArray, total: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(total > 0, bad / total, 0.0)
        terms = bad * np.log(share) + (total - bad) * np.log1p(-share)
    return np.asarray(np.nan_to_num(np.where((share > 0) & (share < 1), terms, 0.0)))
