"""Rhythms: how regular the intervals between events are, counted in steps or in seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.model.space import FloatArray

FEWEST = 8
"""Intervals, the first and the last left out, below which a rhythm cannot be told."""
_TELLING = 10.0
"""Shorter intervals have whole multiples by chance too often for those to count as events left out."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The intervals between events; the first and the last one, where a start or an end may fall off the rhythm, are left out."""

    usual: float
    """Median interval."""
    shortest: float
    longest: float
    off: float
    """Share of the intervals that differ from the usual one by more than the tolerance, and are no multiples of one interval."""
    one_way: bool
    """Whether the intervals only grow, or only shrink, to within the tolerance: they follow a plan, though not a regular one."""


def rhythm(times: FloatArray, tolerance: float, *, slack: float = 0.0) -> Rhythm | None:
    """The rhythm of events at `times` (n,), increasing, in steps or in seconds; None for too few of them or unknown times.

    tolerance: difference from the usual interval that is none, as a share of it; slack: the same in the unit of the times, such as
    1 for whole numbers.
    """
    gaps = np.diff(np.asarray(times, dtype=np.float64))[1:-1]
    if len(gaps) < FEWEST or not np.isfinite(gaps).all():
        return None
    usual, shortest = float(np.median(gaps)), float(gaps.min())
    width = max(tolerance * usual, slack)
    off = float(np.mean(np.abs(gaps - usual) > width))
    # Events of a grid that were left out make whole multiples of its interval: the usual one or, if most are out, the shortest.
    for grid in (usual, shortest):
        if grid >= _TELLING * max(slack, 1.0):
            missed = np.abs(gaps - grid * np.round(gaps / grid)) > max(tolerance * grid, slack)
            off = min(off, float(np.mean(missed)))
    turns = np.diff(gaps)
    one_way = bool((turns >= -width).all() or (turns <= width).all())
    return Rhythm(usual, shortest, float(gaps.max()), off, one_way)
