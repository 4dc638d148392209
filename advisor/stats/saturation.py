"""Tests how a quantity grows with a size, such as throughput with batch size, and at which size it stops growing. The quantity
is given as means of noisy series, which are compared on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray

_MAX_SEGMENTS = 10
"""Maximum number of segments of a series, whose scatter yields the standard error of the series' mean."""


class MeanWithError(NamedTuple):
    """A mean with its standard error and the error's degrees of freedom; the error is NaN for a single value."""

    value: float
    error: float
    freedom: float

    def chance_above(self, limit: float) -> float:
        """Return the probability that the true mean exceeds `limit`; NaN if the standard error is unknown."""
        if not math.isfinite(self.error):
            return math.nan
        if self.error <= 0:
            return float(self.value > limit)
        return float(stats.t.sf((limit - self.value) / self.error, self.freedom))


def median_of_series(values: FloatArray) -> MeanWithError:
    """Return the median of a finite series, shape (n,), n >= 1, with a standard error. The standard error comes from the
    scatter of segments of the series, so that drift counts as noise."""
    blocks = min(_MAX_SEGMENTS, len(values))
    if blocks < 3:
        return MeanWithError(float(np.median(values)), math.nan, 0)
    short_length, long_blocks = divmod(len(values), blocks)
    split = long_blocks * (short_length + 1)  # np.array_split puts the longer segments first
    parts = np.median(values[split:].reshape(-1, short_length), axis=1)
    if long_blocks:
        parts = np.concatenate([np.median(values[:split].reshape(long_blocks, -1), axis=1), parts])
    return MeanWithError(float(np.median(values)), float(parts.std(ddof=1)) / math.sqrt(blocks), blocks - 1)


def pooled_mean(means: Sequence[MeanWithError]) -> MeanWithError:
    """Return the mean of several means, with its standard error. The standard error is the larger of two estimates: from the
    means' own errors, and from the scatter of the means."""
    if len(means) == 1:
        return means[0]
    values = np.array([m.value for m in means])
    from_scatter = MeanWithError(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1)
    errors = np.array([m.error for m in means])
    if not np.isfinite(errors).all():
        return from_scatter
    combined = float(np.sqrt(np.sum(errors**2))) / len(means)
    return (
        from_scatter
        if from_scatter.error >= combined
        else MeanWithError(from_scatter.value, combined, min(m.freedom for m in means))
    )


def difference_of_means(one: MeanWithError, other: MeanWithError) -> MeanWithError:
    """Return the difference `one` minus `other`, with Welch-Satterthwaite degrees of freedom."""
    variance = one.error**2 + other.error**2
    if not variance > 0:
        return MeanWithError(one.value - other.value, math.sqrt(variance), 1.0)  # 0, or NaN
    parts = one.error**4 / max(one.freedom, 1) + other.error**4 / max(other.freedom, 1)
    return MeanWithError(one.value - other.value, math.sqrt(variance), variance**2 / parts)


class Growth(NamedTuple):
    """Result of a test of how a quantity grows with a size."""

    chosen_index: int
    """Index of the chosen size; no larger size increases the quantity by a relevant amount."""
    saturation_probability: float
    """Probability that doubling the chosen size does not nearly double the quantity; NaN if no larger size was measured."""
    max_growth_factor: float
    """Largest growth factor of the quantity per doubling of the size, up to the size after the chosen one."""
    never_scales_probability: float
    """Probability that the quantity never nearly doubles per doubling of the size, up to the size after the chosen one."""


def find_saturation(
    sizes: FloatArray, log_means: Sequence[MeanWithError], *, material: float, doubling: float, alpha: float
) -> Growth:
    """Find the size at which a quantity stops growing. log_means: natural logarithms of the quantity at ascending `sizes`,
    shape (n,), n >= 2.

    material: minimum relative increase by a larger size that matters; it must also be significant at level `alpha`. doubling:
    minimum growth factor per doubling of the size that counts as nearly doubling. All probabilities are NaN if the noise is
    unknown.
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


def _p_of_slow_growth(log_means: Sequence[MeanWithError], octaves: FloatArray, a: int, b: int, doubling: float) -> float:
    """Return the probability that the quantity grows by less than the factor `doubling` per doubling of the size from size a to
    size b."""
    gain = difference_of_means(log_means[b], log_means[a])
    return 1 - gain.chance_above(math.log(doubling) * float(octaves[b] - octaves[a]))
