"""Where a quantity that should double with a size stops to: means of noisy series, compared on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray

_BLOCKS = 10


class Mean(NamedTuple):
    """A mean with its standard error and the error's degrees of freedom; the error is NaN where one value says nothing of it."""

    value: float
    error: float
    freedom: float

    def chance_above(self, limit: float) -> float:
        """Probability that the true mean exceeds `limit`; NaN if the error is unknown."""
        if not math.isfinite(self.error):
            return math.nan
        if self.error <= 0:
            return float(self.value > limit)
        return float(stats.t.sf((limit - self.value) / self.error, self.freedom))


def series_mean(values: FloatArray) -> Mean:
    """The median of a series (n,), n >= 1, finite; its error from how stretches of the series differ, so that drift counts."""
    blocks = min(_BLOCKS, len(values))
    if blocks < 3:
        return Mean(float(np.median(values)), math.nan, 0)
    short, longer = divmod(len(values), blocks)
    split = longer * (short + 1)  # stretches as of np.array_split: the first ones are a value longer
    parts = np.median(values[split:].reshape(-1, short), axis=1)
    if longer:
        parts = np.concatenate([np.median(values[:split].reshape(longer, -1), axis=1), parts])
    return Mean(float(np.median(values)), float(parts.std(ddof=1)) / math.sqrt(blocks), blocks - 1)


def pooled(means: Sequence[Mean]) -> Mean:
    """The mean of several; its error is that of their own or the one that their spread shows, whichever is larger."""
    if len(means) == 1:
        return means[0]
    values = np.array([m.value for m in means])
    between = Mean(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1)
    errors = np.array([m.error for m in means])
    if not np.isfinite(errors).all():
        return between
    within = float(np.sqrt(np.sum(errors**2))) / len(means)
    return between if between.error >= within else Mean(between.value, within, min(m.freedom for m in means))


def difference(one: Mean, other: Mean) -> Mean:
    """`one` less `other`, with the degrees of freedom of Welch and Satterthwaite."""
    variance = one.error**2 + other.error**2
    if not variance > 0:
        return Mean(one.value - other.value, math.sqrt(variance), 1.0)  # 0, or NaN
    parts = one.error**4 / max(one.freedom, 1) + other.error**4 / max(other.freedom, 1)
    return Mean(one.value - other.value, math.sqrt(variance), variance**2 / parts)


class Growth(NamedTuple):
    """How a quantity grows with a size."""

    chosen: int
    """Index of the size from which on a larger one brings no more."""
    saturated: float
    """Probability that the quantity does not nearly double any more beyond the chosen size; NaN if nothing larger was measured."""
    most: float
    """Largest factor per doubling from one size to the next, up to the chosen size and the one after."""
    never: float
    """Probability that no doubling there nearly doubled it."""


def growth(sizes: FloatArray, logs: Sequence[Mean], *, material: float, doubling: float, alpha: float) -> Growth:
    """Of a quantity with these natural logarithms at `sizes` (n,), n >= 2, ascending.

    A larger size brings more if the quantity is a share `material` higher there, beyond noise at level `alpha`. It nearly doubles
    if it grows by the factor `doubling` or more per doubling of the size. NaN probabilities where the noise is unknown.
    """
    octaves = np.log2(sizes)
    chosen = 0
    for i in range(1, len(logs)):
        gain = difference(logs[i], logs[chosen])
        if gain.value >= math.log1p(material) and gain.chance_above(0.0) >= 1 - alpha:
            chosen = i
    beyond = [_slower(logs, octaves, chosen, i, doubling) for i in range(chosen + 1, len(logs))]
    last = min(chosen + 1, len(logs) - 1)
    steps = [(i, i + 1) for i in range(last) if octaves[i + 1] - octaves[i] >= 0.5]
    factors = [math.exp((logs[b].value - logs[a].value) / (octaves[b] - octaves[a])) for a, b in steps]
    slower = [_slower(logs, octaves, a, b, doubling) for a, b in steps]
    return Growth(
        chosen=chosen,
        saturated=float(np.min(beyond)) if beyond else math.nan,
        most=max(factors, default=math.nan),
        never=float(np.min(slower)) if slower else math.nan,
    )


def _slower(logs: Sequence[Mean], octaves: FloatArray, a: int, b: int, doubling: float) -> float:
    """Probability that from size a to b the quantity grows by less than `doubling` per doubling."""
    gain = difference(logs[b], logs[a])
    return 1 - gain.chance_above(math.log(doubling) * float(octaves[b] - octaves[a]))
