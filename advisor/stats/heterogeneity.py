"""Tests whether several values with known standard errors differ by more than chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray


@dataclass(frozen=True, slots=True)
class Heterogeneity:
    """The range of several values, and the range that their standard errors would cause by chance."""

    observed_range: float
    """Largest value minus smallest value."""
    error: float
    """Root mean square of the standard errors of the values."""
    critical_range: float
    """Range that estimates of one true value exceed with the probability of the significance level."""
    p_value: float
    """Probability that estimates of one true value have at least the observed range."""

    @property
    def examples_factor(self) -> float:
        """Factor by which the number of examples must grow for the observed range to be significant; inf if all values are equal.
        Standard errors are assumed to fall with the square root of the number of examples."""
        return (self.critical_range / self.observed_range) ** 2 if self.observed_range > 0 else math.inf

    @property
    def chance_below_critical_range(self) -> float:
        """Probability that a repeated study has a range below `critical_range`."""
        if not self.error > 0:
            return 0.0
        return float(stats.norm.cdf((self.critical_range - self.observed_range) / (math.sqrt(2) * self.error)))


def measure_heterogeneity(values: FloatArray, errors: FloatArray, level: float) -> Heterogeneity:
    """Compare two or more values, shape (k,), with their standard errors, by the studentized range distribution."""
    spread, error, k = float(np.ptp(values)), float(np.sqrt(np.mean(errors**2))), len(values)
    if not error > 0:
        return Heterogeneity(spread, error, 0.0, float(spread == 0))
    critical_range = error * float(stats.studentized_range.isf(level, k, np.inf))
    return Heterogeneity(spread, error, critical_range, float(stats.studentized_range.sf(spread / error, k, np.inf)))


def p_value_of_zero_mean(values: FloatArray) -> float:
    """Return the two-sided p-value of a t-test of mean zero. values: shape (n,), n >= 2. If all values are equal, the p-value is 1
    if they are 0, else 0."""
    if np.ptp(values) == 0:
        return float(values[0] == 0)
    return float(2 * stats.t.sf(abs(values.mean()) / (values.std(ddof=1) / math.sqrt(len(values))), len(values) - 1))
