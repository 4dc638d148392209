"""Estimates how far the cost of a running trial can still fall, from its own recent slope and from the falls of completed
trials.

Lower costs are better; costs may be infinite or NaN. Steps increase strictly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.model.space import FloatArray, IntArray

MIN_SLOPE_POINTS = 3
"""Minimum number of points to estimate the slope of a cost curve; also the number of points whose median is a level."""
RECENT_STEP_SHARE = 1 / 3
"""Share of the steps so far, counted back from the latest step, that counts as recent. We chose this share on the curves of
`benchmarks/quality/guard.py`."""
_MIN_SLOPE_SPAN = 0.1
"""Minimum distance between the two points that determine a slope, as a share of the points so far; closer points differ mostly
by noise."""


def best_so_far(costs: FloatArray) -> FloatArray:
    """Return the lowest finite cost up to each point, shape (n,); inf before the first finite cost."""
    return np.minimum.accumulate(np.where(np.isfinite(costs), costs, np.inf))


def running_medians(costs: FloatArray) -> FloatArray:
    """Return, for each point, the median of the last three costs, shape (n,); a non-finite cost counts as inf."""
    finite = np.where(np.isfinite(costs), costs, np.inf)
    padded = np.concatenate([np.full(2, finite[0]), finite])
    return np.asarray(np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0))


def extrapolated_gain(steps: IntArray | FloatArray, level: FloatArray, end_step: float, at: int) -> float:
    """Return the fall of the cost from point `at` to step `end_step` at the steepest recent slope; inf if no slope is known.

    level: level of the curve at each point, as returned by `running_medians`. The returned fall is never negative.
    """
    if at + 1 < MIN_SLOPE_POINTS:
        return np.inf
    left = max(0.0, end_step - float(steps[at]))
    first = min(int(np.searchsorted(steps, (1 - RECENT_STEP_SHARE) * steps[at])), at - 2)
    ends = np.arange(max(first, 1), at + 1)
    starts = np.maximum(ends - max(1, int(np.ceil(_MIN_SLOPE_SPAN * at))), 0)
    with np.errstate(invalid="ignore"):
        slopes = (level[starts] - level[ends]) / (steps[ends] - steps[starts])
    steepest = float(np.where(np.isnan(slopes), np.inf, slopes).max())
    return max(0.0, steepest) * left if left else 0.0


def lowest_costs_until(step: float, curves: Sequence[tuple[IntArray | FloatArray, FloatArray]]) -> FloatArray:
    """Return the lowest cost of each curve up to a step, shape (curves,); inf for a curve that has no cost up to this step.

    curves: (steps, `best_so_far`) of each curve.
    """
    ends = (int(steps.searchsorted(step, "right")) - 1 for steps, _ in curves)
    return np.array([costs[end] if end >= 0 else np.inf for end, (_, costs) in zip(ends, curves, strict=True)])


def largest_later_gain(best: float, costs: FloatArray, final_costs: FloatArray) -> float:
    """Return the largest fall of any completed curve after a step, measured from `best` or, if lower, from its own cost at the
    step.

    costs: result of `lowest_costs_until` for the step. final_costs: lowest cost of each whole curve. Return inf if a curve has no
    cost up to the step.
    """
    if not np.isfinite(costs).all():
        return np.inf
    return max(0.0, float((np.minimum(costs, best) - final_costs).max()))
