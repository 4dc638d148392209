"""Computes shares, ratios and means with their uncertainty, and tests how a quantity, such as throughput, grows with a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from advisor.model.space import FloatArray

_MAX_SEGMENTS = 10
"""Maximum number of segments of a series. Differences between segments show the noise, including drift and autocorrelation."""


class Estimate(NamedTuple):
    """An estimated number with its standard error (NaN if unknown), and the degrees of freedom of the standard error."""

    value: float
    error: float
    freedom: float

    def chance_above(self, limit: float) -> float:
        """Return the probability that the true value exceeds `limit` (Student's t); NaN if the standard error is unknown."""
        if not math.isfinite(self.error):
            return math.nan
        if self.error <= 0:
            return float(self.value > limit)
        return float(special.stdtr(self.freedom, (self.value - limit) / self.error))


def p_value_of_share(share: float, points: int, limit: float) -> float:
    """Return the binomial probability that at least the share `share` of the points has a property whose true share is `limit`.
    `share` * `points` is rounded, because a weighted share need not be a whole number of points."""
    if points < 1:
        return 1.0
    return float(special.bdtrc(math.ceil(share * points - 0.5) - 1, points, limit))


def chance_of_at_least(hits: int, chances: FloatArray) -> float:
    """Return the probability that at least `hits` of n independent events with these `chances`, (n,), happen."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.convolve(distribution, [1 - chance, chance])
    return float(min(distribution[max(hits, 0) :].sum(), 1.0))


def standard_error_of_share(share: FloatArray, n: FloatArray) -> FloatArray:
    """Return the standard errors, shape (k,), of shares of right answers among `n` examples each. The errors are positive even
    for shares of 0 and 1, because half an example is added to both right and wrong answers."""
    p = (share * n + 0.5) / (n + 1)
    return np.asarray(np.sqrt(p * (1 - p) / n), dtype=np.float64)


def ratio_of_sums(numerators: FloatArray, denominators: FloatArray, weights: FloatArray) -> Estimate:
    """Return the ratio of the weighted sums of `numerators` and `denominators`, shape (n,), n >= 1. The standard error is a
    jackknife that leaves out segments; NaN for fewer than 4 points. The sum of the denominators must be positive."""
    above, below = numerators * weights, denominators * weights
    total_ratio = float(above.sum() / below.sum())
    if len(numerators) < 4:
        return Estimate(total_ratio, math.nan, 0)
    count = min(_MAX_SEGMENTS, len(numerators) // 2)
    segment_of_point = np.arange(len(numerators)) * count // len(numerators)
    numerators_without = above.sum() - np.bincount(segment_of_point, above)
    denominators_without = below.sum() - np.bincount(segment_of_point, below)
    ratios = numerators_without / np.maximum(denominators_without, 1e-300)
    error = math.sqrt((count - 1) / count * float(np.sum((ratios - ratios.mean()) ** 2)))
    return Estimate(total_ratio, error, count - 1)


def median_of_series(values: FloatArray) -> Estimate:
    """Return the median of a finite series, shape (n,), n >= 1, with a standard error from the scatter of its segments."""
    count = min(_MAX_SEGMENTS, len(values))
    if count < 3:
        return Estimate(float(np.median(values)), math.nan, 0)
    medians = [np.median(part) for part in np.array_split(values, count)]
    error = float(np.std(medians, ddof=1)) / math.sqrt(count)
    return Estimate(float(np.median(values)), error, count - 1)


def pooled_mean(means: Sequence[Estimate]) -> Estimate:
    """Return the mean of several estimates. Its error is the larger of two: from their errors, and from their scatter."""
    if len(means) == 1:
        return means[0]
    values, errors = np.array([m.value for m in means]), np.array([m.error for m in means])
    scatter = float(values.std(ddof=1)) / math.sqrt(len(values))
    error = float(np.sqrt(np.sum(errors**2))) / len(means)
    if not np.isfinite(errors).all() or scatter >= error:
        return Estimate(float(values.mean()), scatter, len(values) - 1)
    return Estimate(float(values.mean()), error, min(m.freedom for m in means))


def difference_of_means(one: Estimate, other: Estimate) -> Estimate:
    """Return `one` minus `other`, with Welch-Satterthwaite degrees of freedom."""
    variance = one.error**2 + other.error**2
    if not variance > 0:
        return Estimate(one.value - other.value, math.sqrt(variance), 1.0)  # 0, or NaN
    divisor = one.error**4 / max(one.freedom, 1) + other.error**4 / max(other.freedom, 1)
    return Estimate(one.value - other.value, math.sqrt(variance), variance**2 / divisor)


class GrowthWithSize(NamedTuple):
    """The growth of a quantity, such as throughput, with a size, such as the batch size."""

    chosen_index: int
    """Index of the size beyond which no size increases the quantity by a relevant amount."""
    saturation_probability: float
    """Probability that doubling the chosen size does not nearly double the quantity; NaN without larger sizes."""
    max_growth_factor: float
    """Largest growth factor of the quantity per doubling of the size, up to the size after the chosen one."""
    never_scales_probability: float
    """Probability that no doubling of the size nearly doubles the quantity, up to the size after the chosen one."""


def find_saturation(
    sizes: FloatArray, log_means: Sequence[Estimate], *, material: float, doubling: float, alpha: float
) -> GrowthWithSize:
    """Find the size at which a quantity stops growing. log_means: natural logarithms of the quantity at ascending `sizes`,
    (n,), n >= 2.

    A larger size is better if it increases the quantity by the share `material` or more, significantly at level `alpha`. doubling:
    minimum growth factor per doubling that counts as nearly doubling. Probabilities are NaN if the noise is unknown.
    """
    octaves = np.log2(sizes)
    best = 0
    for i in range(1, len(log_means)):
        gain = difference_of_means(log_means[i], log_means[best])
        if gain.value >= math.log1p(material) and gain.chance_above(0.0) >= 1 - alpha:
            best = i
    chances_beyond = [_p_of_slow_growth(log_means, octaves, best, i, doubling) for i in range(best + 1, len(log_means))]
    last = min(best + 1, len(log_means) - 1)
    steps = [(i, i + 1) for i in range(last) if octaves[i + 1] - octaves[i] >= 0.5]
    log_growth = [(log_means[b].value - log_means[a].value) / (octaves[b] - octaves[a]) for a, b in steps]
    chances = [_p_of_slow_growth(log_means, octaves, a, b, doubling) for a, b in steps]
    return GrowthWithSize(
        chosen_index=best,
        saturation_probability=float(np.min(chances_beyond)) if chances_beyond else math.nan,
        max_growth_factor=math.exp(max(log_growth, default=math.nan)),
        never_scales_probability=float(np.min(chances)) if chances else math.nan,
    )


def _p_of_slow_growth(log_means: Sequence[Estimate], octaves: FloatArray, a: int, b: int, doubling: float) -> float:
    """Return the probability that, from size a to b, the quantity grows by less than `doubling` per doubling of the size."""
    gain = difference_of_means(log_means[b], log_means[a])
    return 1 - gain.chance_above(math.log(doubling) * float(octaves[b] - octaves[a]))
