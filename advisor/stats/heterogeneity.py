"""Whether values, each with an error, lie further apart than chance alone would put equal ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray


@dataclass(frozen=True, slots=True)
class Apart:
    """k values with errors."""

    spread: float
    """Largest less smallest value."""
    error: float
    """Standard error of one value, root mean square."""
    least: float
    """Spread that equal values exceed in a share `level` of all cases: what it takes to tell the first from the last."""
    p: float
    """How often equal values lie as far apart."""

    @property
    def again(self) -> float:
        """How likely the values would again lie within `least`, drawn anew with the same errors."""
        return (
            float(stats.norm.cdf((self.least - self.spread) / (math.sqrt(2) * self.error))) if self.error > 0 else 0.0
        )


def apart(values: FloatArray, errors: FloatArray, level: float) -> Apart:
    """How far k >= 2 values (k,) with standard errors (k,) lie apart, by the distribution of the range of normal values."""
    spread, error, k = float(np.ptp(values)), float(np.sqrt(np.mean(errors**2))), len(values)
    if not error > 0:
        return Apart(spread, error, 0.0, float(spread == 0))
    least = error * float(stats.studentized_range.isf(level, k, np.inf))
    return Apart(spread, error, least, float(stats.studentized_range.sf(spread / error, k, np.inf)))


def error_of_share(share: FloatArray, n: FloatArray) -> FloatArray:
    """Standard error of shares (k,) of n (k,) examples; half an example more and less keeps that of 0 and 1 above zero."""
    p = (share * n + 0.5) / (n + 1)
    return np.asarray(np.sqrt(p * (1 - p) / n), dtype=np.float64)


def p_of_mean(values: FloatArray) -> float:
    """Two-sided p-value of the mean of n >= 2 values (n,) being zero, by a t test; 0 for equal values other than zero."""
    if np.ptp(values) == 0:
        return float(values[0] == 0)
    return float(2 * stats.t.sf(abs(values.mean()) / (values.std(ddof=1) / math.sqrt(len(values))), len(values) - 1))
