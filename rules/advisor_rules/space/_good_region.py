"""Which part of an axis holds the good points, and how often chance alone would put them into as small a part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, logsumexp

from advisor.model.space import BoolArray, FloatArray, IntArray
from advisor.stats.importance import evenly_by_rank, normal_scores

FEWEST_GOOD = 4
"""Good points below which the part of an axis that they leave free says nothing."""
FEWEST = 9
"""Points below which not even neighbours are closer together than chance puts them in 5 %."""
SEED = 0
_STRAYS = 0.05
_SHUFFLES = 999
_MOST = 300
"""Points whose shuffles say whether an axis matters, evenly over their costs: where more are needed, it hardly does."""
_WINDOWS = np.linspace(0.1, 0.9, 9)
_SLIGHT = 0.1
_END = 0.2


@dataclass(frozen=True)
class Region:
    """The part of one axis that holds the good points, but for strays: one in twenty of them at either end."""

    low: float
    """Of the good points that count, in positions along the axis."""
    high: float
    good: int
    """Good points in all."""
    strays: int
    """Of them, those outside."""
    inside: int
    """Points, good or not, that lie between `low` and `high`."""
    margin: float
    """How far beyond either end good points still are to be expected."""
    p: float
    """How often as many points drawn at random, whatever their sampling, would lie as close together among the others."""


def good(costs: FloatArray, share: float, tolerance: float) -> BoolArray:
    """Which points (n,) are good: the best `share` of them, 4 at least, and what costs at most `tolerance` more than the best.

    NaN costs are the worst and never good. Ties of the last good one are good.
    """
    ordered = np.sort(costs)
    count = min(max(math.ceil(share * len(costs)), FEWEST_GOOD), int(np.isfinite(ordered).sum()))
    if count == 0:
        return np.zeros(len(costs), dtype=np.bool_)
    with np.errstate(over="ignore"):
        return np.asarray(costs <= max(float(ordered[count - 1]), float(ordered[0] + tolerance)), dtype=np.bool_)


def region(positions: FloatArray, costs: FloatArray, marked: BoolArray, missed: float) -> Region | None:
    """The region of the marked points, positions and costs (n,); None for fewer than 4 of them.

    It holds the best three. The margin: with k good points spread evenly over a part of the axis, what lies beyond the outermost
    one is a spacing like those between them, and is larger than t times all of these together with probability (1 + t)^-(k - 1);
    that is `missed`.
    """
    n, count = len(positions), int(marked.sum())
    if count < FEWEST_GOOD:
        return None
    at = np.sort(positions[marked])
    strays = int(_STRAYS * count)
    best = positions[np.argsort(costs, kind="stable")[:3]]
    low, high = min(float(at[strays]), best.min()), max(float(at[count - 1 - strays]), best.max())
    inside = int(np.sum((positions >= low) & (positions <= high)))
    gaps = count - 1 - 2 * strays
    margin = (high - low) * (missed ** (-1 / gaps) - 1)
    left_out = int(np.sum((at < low) | (at > high)))
    chance = chance_of_span(n, count, gaps, inside)
    return Region(float(low), float(high), count, left_out, inside, float(margin), chance)


def matters(positions: FloatArray, costs: FloatArray) -> float:
    """P-value that costs (n,) have to do with positions (n,) along an axis; NaN costs tie as the worst.

    Shuffles of the ranks: the run of neighbours along the axis that is best next to the others, of whichever length. It asks all
    points, where `region` asks the good ones: few of them among many axes show little by themselves. Points of one position are
    never told apart.
    """
    some = evenly_by_rank(costs, _MOST)
    _, at = np.unique(positions[some], return_inverse=True)
    order, sizes = np.argsort(at, kind="stable"), np.cumsum(np.bincount(at))
    scores, n = normal_scores(costs[some]), len(some)
    shuffled = np.random.default_rng(SEED).permuted(np.tile(scores, (_SHUFFLES, 1)), axis=1)
    sums = np.cumsum(np.vstack([scores, shuffled])[:, order], axis=1)
    borders = np.concatenate([[0], sizes])
    sums = np.hstack([np.zeros((len(sums), 1)), sums])[:, borders]
    starts, ends = _runs(borders, n)
    if not len(starts):
        return 1.0
    length = (borders[ends] - borders[starts]).astype(np.float64)
    better = ((sums[:, starts] - sums[:, ends]) / np.sqrt(length * (n - length) / n)).max(1)
    return float(np.mean(better >= better[0] - 1e-9))


def _runs(borders: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """Runs of levels, from border to border, that hold a tenth, two tenths ... of the n points, or just more; not all of them."""
    starts = np.tile(np.arange(len(borders) - 1), len(_WINDOWS))
    wanted = borders[starts] + np.repeat(np.ceil(_WINDOWS * n), len(borders) - 1)
    ends = np.searchsorted(borders, wanted)
    fits = ends < len(borders)
    starts, ends = starts[fits], ends[fits]
    fits = borders[ends] - borders[starts] < n
    return starts[fits], ends[fits]


def kept(part: Region, positions: FloatArray, failed: BoolArray) -> tuple[float, float]:
    """The part of the axis, (low, high) in 0..1, that is worth searching: the region and its margins.

    An end stays where good points lie in the outer fifth of the axis, where less than a tenth of it would go, and where most points
    beyond the region failed; positions (n,), failed (n,).
    """
    low, high = max(part.low - part.margin, 0.0), min(part.high + part.margin, 1.0)
    if part.low < _END or low < _SLIGHT or _mostly(failed[positions < part.low]):
        low = 0.0
    if part.high > 1 - _END or high > 1 - _SLIGHT or _mostly(failed[positions > part.high]):
        high = 1.0
    return low, high


def _mostly(failed: BoolArray) -> bool:
    return bool(2 * failed.sum() > len(failed))


def chance_of_span(n: int, count: int, gaps: int, span: int) -> float:
    """Chance that, of `count` among `n` ranks at random, a run of `gaps` + 1 consecutive ones spans at most `span` ranks; exact.

    Whichever run: the gaps between ranks drawn at random are exchangeable.
    """
    h = np.arange(gaps + 1, min(span, n) + 1, dtype=np.float64)
    h = h[n - h + 1 >= count - gaps]
    if not len(h):
        return 0.0 if span < gaps + 1 else 1.0
    ways = _log_choose(h - 2, gaps - 1) + _log_choose(n - h + 1, count - gaps)
    return float(min(1.0, np.exp(logsumexp(ways) - _log_choose(np.array(float(n)), count))))


def _log_choose(n: FloatArray, k: int) -> FloatArray:
    return np.asarray(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), dtype=np.float64)
