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
    """Return the probability that at least `hits` of n independent events happen (Poisson binomial). chances: probability of each
    event, shape (n,)."""
    hit_count_distribution = np.ones(1)
    for chance in chances:
        hit_count_distribution = np.convolve(hit_count_distribution, [1 - chance, chance])
    return float(min(hit_count_distribution[max(hits, 0) :].sum(), 1.0))


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
    segment_count = min(_MAX_SEGMENTS, len(numerators) // 2)
    segment_of_point = np.arange(len(numerators)) * segment_count // len(numerators)
    numerators_without = above.sum() - np.bincount(segment_of_point, above)
    denominators_without = below.sum() - np.bincount(segment_of_point, below)
    ratios_without = numerators_without / np.maximum(denominators_without, 1e-300)
    standard_error = math.sqrt(
        (segment_count - 1) / segment_count * float(np.sum((ratios_without - ratios_without.mean()) ** 2))
    )
    return Estimate(total_ratio, standard_error, segment_count - 1)


def median_of_series(values: FloatArray) -> Estimate:
    """Return the median of a finite series, shape (n,), n >= 1, with a standard error from the scatter of its segments."""
    segment_count = min(_MAX_SEGMENTS, len(values))
    if segment_count < 3:
        return Estimate(float(np.median(values)), math.nan, 0)
    standard_error = float(np.std([np.median(part) for part in np.array_split(values, segment_count)], ddof=1)) / math.sqrt(
        segment_count
    )
    return Estimate(float(np.median(values)), standard_error, segment_count - 1)


def pooled_mean(means: Sequence[Estimate]) -> Estimate:
    """Return the mean of several estimates. Its standard error is the larger of two: from their standard errors, and from their
    scatter."""
    if len(means) == 1:
        return means[0]
    means_of_estimates = np.array([m.value for m in means])
    mean_with_scatter = Estimate(
        float(means_of_estimates.mean()),
        float(means_of_estimates.std(ddof=1)) / math.sqrt(len(means_of_estimates)),
        len(means_of_estimates) - 1,
    )
    errors = np.array([m.error for m in means])
    if not np.isfinite(errors).all():
        return mean_with_scatter
    error_from_errors = float(np.sqrt(np.sum(errors**2))) / len(means)
    if mean_with_scatter.error >= error_from_errors:
        return mean_with_scatter
    return Estimate(mean_with_scatter.value, error_from_errors, min(m.freedom for m in means))


def difference_of_means(one: Estimate, other: Estimate) -> Estimate:
    """Return `one` minus `other`, with Welch-Satterthwaite degrees of freedom."""
    variance_of_difference = one.error**2 + other.error**2
    if not variance_of_difference > 0:
        return Estimate(one.value - other.value, math.sqrt(variance_of_difference), 1.0)  # 0, or NaN
    freedom_divisor = one.error**4 / max(one.freedom, 1) + other.error**4 / max(other.freedom, 1)
    return Estimate(one.value - other.value, math.sqrt(variance_of_difference), variance_of_difference**2 / freedom_divisor)


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
    log2_sizes = np.log2(sizes)
    best_index = 0
    for i in range(1, len(log_means)):
        gain = difference_of_means(log_means[i], log_means[best_index])
        if gain.value >= math.log1p(material) and gain.chance_above(0.0) >= 1 - alpha:
            best_index = i
    slow_growth_chances_beyond = [
        _p_of_slow_growth(log_means, log2_sizes, best_index, i, doubling) for i in range(best_index + 1, len(log_means))
    ]
    last_index = min(best_index + 1, len(log_means) - 1)
    size_steps = [(i, i + 1) for i in range(last_index) if log2_sizes[i + 1] - log2_sizes[i] >= 0.5]
    growth_factors = [
        math.exp((log_means[b].value - log_means[a].value) / (log2_sizes[b] - log2_sizes[a])) for a, b in size_steps
    ]
    slow_growth_chances = [_p_of_slow_growth(log_means, log2_sizes, a, b, doubling) for a, b in size_steps]
    return GrowthWithSize(
        chosen_index=best_index,
        saturation_probability=float(np.min(slow_growth_chances_beyond)) if slow_growth_chances_beyond else math.nan,
        max_growth_factor=max(growth_factors, default=math.nan),
        never_scales_probability=float(np.min(slow_growth_chances)) if slow_growth_chances else math.nan,
    )


def _p_of_slow_growth(log_means: Sequence[Estimate], octaves: FloatArray, a: int, b: int, doubling: float) -> float:
    """Return the probability that, from size a to b, the quantity grows by less than the factor `doubling` per doubling of the
    size."""
    gain = difference_of_means(log_means[b], log_means[a])
    return 1 - gain.chance_above(math.log(doubling) * float(octaves[b] - octaves[a]))
