"""Computes the mean of a part of a noisy curve. The standard error comes from means over blocks of points, so the noise of
neighbouring points may be correlated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from advisor.model.space import FloatArray

MAX_BLOCKS = 5
"""Maximum number of blocks. Means over long blocks are nearly independent even if the points are correlated."""


@dataclass(frozen=True, slots=True)
class MeanLevel:
    """The mean of one part of a curve, with its uncertainty."""

    mean: float
    error: float
    """Standard error of the mean."""
    freedom: float
    """Degrees of freedom of the standard error."""

    def p_value_above(self, limit: float) -> float:
        """Return the one-sided p-value of the claim that the mean is above `limit` (Student's t)."""
        return _compute_p_value(self.mean - limit, self.error, self.freedom)

    def p_value_below(self, limit: float) -> float:
        """Return the one-sided p-value of the claim that the mean is below `limit` (Student's t)."""
        return _compute_p_value(limit - self.mean, self.error, self.freedom)

    def p_value_above_other(self, other: MeanLevel) -> float:
        """Return the one-sided p-value of the claim that this mean is above the mean `other` (Welch's test)."""
        standard_error = math.hypot(self.error, other.error)
        if standard_error <= 0:
            return _compute_p_value(self.mean - other.mean, 0.0, 1.0)
        variances_and_freedoms = ((self.error**2, self.freedom), (other.error**2, other.freedom))
        degrees_of_freedom = standard_error**4 / sum(variance**2 / n for variance, n in variances_and_freedoms)
        return _compute_p_value(self.mean - other.mean, standard_error, degrees_of_freedom)


def mean_level(values: FloatArray) -> MeanLevel:
    """Return the mean of finite values, shape (n,), n >= 2, with its standard error."""
    means = _block_means(values)
    return MeanLevel(float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means))), float(len(means) - 1))


def mean_level_with_trend(values: FloatArray) -> MeanLevel:
    """Return the mean of finite values, shape (n,), n >= 3, with an error from residuals of a line through block means."""
    means = _block_means(values)
    at = np.arange(len(means)) - (len(means) - 1) / 2
    residuals = means - means.mean() - at * (at @ means) / (at @ at)
    freedom = len(means) - 2
    error = math.sqrt(float(residuals @ residuals) / freedom / len(means))
    return MeanLevel(float(means.mean()), error, float(freedom))


def _block_means(values: FloatArray) -> FloatArray:
    return np.array([part.mean() for part in np.array_split(values, min(MAX_BLOCKS, len(values)))])


def _compute_p_value(difference: float, error: float, freedom: float) -> float:
    if error <= 0:
        return 0.0 if difference > 0 else 1.0
    return float(special.stdtr(freedom, -difference / error))
