"""Slow rises: whether a curve that fell goes up again step by step, neither by chance nor at one blow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.model.space import FloatArray
from advisor.stats.curve import Rise, end_rise

_BLOCKS = 12
_FEWEST_BLOCKS = 5
"""Of four blocks the one order in 24 that rises all along is no evidence at 4 %, of five the one in 120 is."""


@dataclass(frozen=True, slots=True)
class SlowRise:
    """A curve's way from its lowest level to its end."""

    rise: Rise
    """From the lowest level to that of the end, against noise."""
    p: float
    """How often chance shows both: so large a rise, and a way there that goes up so steadily."""
    steepest: float
    """Share of the rise that came between two neighbours of the way's (at most 12) stretches: near 1 for a jump."""


def slow_rise(values: FloatArray) -> SlowRise | None:
    """Reads a curve (n,), finite; None for fewer than 6 points. A curve whose way up is too short to be steady has p = 1."""
    rise = end_rise(values)
    if rise is None:
        return None
    # What is looked at begins after the window of the lowest level: that was chosen for being low.
    way = values[rise.best + max(1, round(0.05 * len(values))) :]
    blocks = min(_BLOCKS, len(way) // 2)
    if blocks < _FEWEST_BLOCKS or rise.height <= 0:
        return SlowRise(rise, 1.0, 1.0)
    levels = np.array([float(np.median(part)) for part in np.array_split(way, blocks)])
    ups = np.diff(np.concatenate([[rise.best_level], levels]))
    return SlowRise(rise, max(rise.p, steady_p(levels)), float(ups.max()) / max(rise.height, 1e-300))


def steady_p(levels: FloatArray) -> float:
    """One-sided p-value of Kendall's test (exact) that levels (n,) in random order rise as steadily; ties count half."""
    later = np.sign(levels[None, :] - levels[:, None])[np.triu_indices(len(levels), 1)]
    rises = float(np.sum(later > 0)) + 0.5 * float(np.sum(later == 0))
    chances = _inversions(len(levels))
    return float(min(chances[: int(len(later) - rises) + 1].sum(), 1.0))


@lru_cache(maxsize=32)
def _inversions(n: int) -> FloatArray:
    """Probabilities of 0, 1, ... pairs out of order in a random order of n."""
    chances = np.ones(1)
    for k in range(2, n + 1):
        chances = np.convolve(chances, np.full(k, 1 / k))
    return chances
