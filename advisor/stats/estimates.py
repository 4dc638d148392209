"""Computes shares, ratios and means with their uncertainty, and tests how a quantity grows with a size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from advisor.model.space import FloatArray

_MAX_SEGMENTS = 10
"""Maximum number of segments of a series; differences between them show the noise, including drift and autocorrelation."""


class Estimate(NamedTuple):
    """An estimated number with its standard error, NaN if unknown, and the error's degrees of freedom."""

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
    """Return the binomial probability that at least the share `share` of the points has a property if its true share is
    `limit`. `share` * `points` is rounded, because a weighted share need not be a whole number of points."""
    if points < 1:
        return 1.0
    return float(special.bdtrc(math.ceil(share * points - 0.5) - 1, points, limit))


def chance_of_at_least(hits: int, chances: FloatArray) -> float:
    """Return the probability that at least `hits` of independent events with these `chances` (n,) happen (Poisson binomial)."""
    distribution = np.ones(1)
    for chance in chances:
        distribution = np.convolve(distribution, [1 - chance, chance])
    return float(min(distribution[max(hits, 0) :].sum(), 1.0))


def error_of_share(share: FloatArray, n: FloatArray) -> FloatArray:
    """Return the standard error (k,) of shares of right answers, each among n examples; positive even for 0 and 1, because half
    an example is added to both answers."""
    p = (share * n + 0.5) / (n + 1)
    return np.asarray(np.sqrt(p * (1 - p) / n), dtype=np.float64)


def ratio_of_sums(numerators: FloatArray, denominators: FloatArray, weights: FloatArray) -> Estimate:
    """Return the weighted sum of `numerators` divided by that of `denominators`, all (n,), n >= 1, with a jackknife standard
    error that leaves out segments; the sum of the denominators is positive, and the error is NaN for fewer than 4 points."""
    above, below = numerators * weights, denominators * weights
    value = float(above.sum() / below.sum())
    if len(numerators) < 4:
        return Estimate(value, math.nan, 0)
    blocks = min(_MAX_SEGMENTS, len(numerators) // 2)
    block = np.arange(len(numerators)) * blocks // len(numerators)
    sums_above = above.sum() - np.bincount(block, above)
    sums_below = below.sum() - np.bincount(block, below)
    ratios_without = sums_above / np.maximum(sums_below, 1e-300)
    error = math.sqrt((blocks - 1) / blocks * float(np.sum((ratios_without - ratios_without.mean()) ** 2)))
    return Estimate(value, error, blocks - 1)


def median_of_series(values: FloatArray) -> Estimate:
    """Return the median of a finite series, shape (n,), n >= 1, with a standard error from the scatter of its segments."""
    blocks = min(_MAX_SEGMENTS, len(values))
    if blocks < 3:
        return Estimate(float(np.median(values)), math.nan, 0)
    error = float(np.std([np.median(part) for part in np.array_split(values, blocks)], ddof=1)) / math.sqrt(blocks)
    return Estimate(float(np.median(values)), error, blocks - 1)


def pooled_mean(means: Sequence[Estimate]) -> Estimate:
    """Return the mean of several estimates. Its error is the larger of those from their own errors and from their scatter."""
    if len(means) == 1:
        return means[0]
    values = np.array([m.value for m in means])
    from_scatter = Estimate(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1)
    errors = np.array([m.error for m in means])
    if not np.isfinite(errors).all():
        return from_scatter
    combined = float(np.sqrt(np.sum(errors**2))) / len(means)
    if from_scatter.error >= combined:
        return from_scatter
    return Estimate(from_scatter.value, combined, min(m.freedom for m in means))


def difference_of_means(one: Estimate, other: Estimate) -> Estimate:
    """Return `one` minus `other`, with Welch-Satterthwaite degrees of freedom."""
    variance = one.error**2 + other.error**2
    if not variance > 0:
        return Estimate(one.value - other.value, math.sqrt(variance), 1.0)  # 0, or NaN
    parts = one.error**4 / max(one.freedom, 1) + other.error**4 / max(other.freedom, 1)
    return Estimate(one.value - other.value, math.sqrt(variance), variance**2 / parts)


class Growth(NamedTuple):
    """How a quantity grows with a size."""

    chosen_index: int
    """Index of the size beyond which no size increases the quantity by a relevant amount."""
    saturation_probability: float
    """Probability that doubling the chosen size does not nearly double the quantity; NaN without larger sizes."""
    max_growth_factor: float
    """Largest growth factor per doubling, up to the size after the chosen one."""
    never_scales_probability: float
    """Probability that the quantity never nearly doubles per doubling, up to the size after the chosen one."""


def find_saturation(
    sizes: FloatArray, log_means: Sequence[Estimate], *, material: float, doubling: float, alpha: float
) -> Growth:
    """Find the size at which a quantity stops growing. log_means: natural logarithms of the quantity at ascending `sizes`,
    (n,), n >= 2.

    material: minimum relative increase by a larger size that matters, and is significant at level `alpha`. doubling: minimum
    growth factor per doubling that counts as nearly doubling. Probabilities are NaN if the noise is unknown.
    """
    octaves = np.log2(sizes)
    best_index = 0
    for i in range(1, len(log_means)):
        gain = difference_of_means(log_means[i], log_means[best_index])
        if gain.value >= math.log1p(material) and gain.chance_above(0.0) >= 1 - alpha:
            best_index = i
    p_beyond = [_p_of_slow_growth(log_means, octaves, best_index, i, doubling) for i in range(best_index + 1, len(log_means))]
    last = min(best_index + 1, len(log_means) - 1)
    steps = [(i, i + 1) for i in range(last) if octaves[i + 1] - octaves[i] >= 0.5]
    factors = [math.exp((log_means[b].value - log_means[a].value) / (octaves[b] - octaves[a])) for a, b in steps]
    p_slower = [_p_of_slow_growth(log_means, octaves, a, b, doubling) for a, b in steps]
    return Growth(
        chosen_index=best_index,
        saturation_probability=float(np.min(p_beyond)) if p_beyond else math.nan,
        max_growth_factor=max(factors, default=math.nan),
        never_scales_probability=float(np.min(p_slower)) if p_slower else math.nan,
    )


def _p_of_slow_growth(log_means: Sequence[Estimate], octaves: FloatArray, a: int, b: int, doubling: float) -> float:
    """Return the probability that the quantity grows by less than `doubling` per doubling of the size from size a to b."""
    gain = difference_of_means(log_means[b], log_means[a])
    return 1 - gain.chance_above(math.log(doubling) * float(octaves[b] - octaves[a]))
