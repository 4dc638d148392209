"""Curves as noisy series: how noisy they are, where they flatten, whether they still move."""

from __future__ import annotations

import numpy as np

from advisor.space import FloatArray


def noise(values: FloatArray) -> float:
    """Robust standard deviation of the point-to-point noise of a smooth curve, from its second differences.

    values: shape (n,), finite, evenly spaced. NaN for fewer than 5 points. A smooth trend cancels in second differences, whose
    variance is 6 sigma^2 for white noise; the median makes single jumps harmless.
    """
    if len(values) < 5:
        return float("nan")
    second = values[:-2] - 2 * values[1:-1] + values[2:]
    return float(np.median(np.abs(second)) / 0.6745 / np.sqrt(6))
