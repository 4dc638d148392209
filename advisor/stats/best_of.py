"""The best of n trials and how it depends on n, exactly, without drawing samples. Lower is better; NaN is a failed trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import gammaln

from advisor.model.space import FloatArray

_CALMEST = 0.25
_USUAL = 0.7


def chance_of_better(costs: FloatArray, n: int, level: float) -> float:
    """Probability that the best of `n` of these trials, costs (N,), drawn without replacement, is below `level`."""
    return 1 - chance_of_none(len(costs), min(n, len(costs)), int(np.sum(costs < level)))


def chance_of_none(total: int, drawn: int, marked: int) -> float:
    """Probability that none of `marked` among `total` is drawn in `drawn` draws without replacement (hypergeometric)."""
    if drawn > total - marked:
        return 0.0
    return math.exp(_log_choose(total - marked, drawn) - _log_choose(total, drawn))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def chance_of_an_empty_part(sizes: Sequence[int], drawn: int) -> float:
    """Probability that `drawn` of all trials, drawn without replacement, leave out one of the parts of these sizes or more.

    Exact, by inclusion and exclusion over the parts: the p-value of a part whose best trial comes only after `drawn` of others.
    """
    signs = {0: 1}
    for size in sizes:
        for left_out, sign in list(signs.items()):
            signs[left_out + size] = signs.get(left_out + size, 0) - sign
    total = sum(sizes)
    none = math.fsum(sign * chance_of_none(total, drawn, left_out) for left_out, sign in signs.items())
    return min(max(1 - none, 0.0), 1.0)


@dataclass(frozen=True)
class Halving:
    """How much worse the best of a random half of the trials is than the best of all, on average."""

    loss: float
    """The expected difference, exact for these trials."""
    shape: float
    """Of the gamma distribution of the difference over random studies of as many trials in the same space."""
    fade: float
    """What the next doubling gains over what the last one did, 0.25..1: extrapolated from quarters and eighths."""

    def interval(self, level: float) -> tuple[float, float]:
        """(low, high) of what others of the same space would lose on average, each end with this one-sided certainty."""
        if not self.loss > 0:
            return 0.0, 0.0
        high, low = stats.gamma.ppf([1 - level, level], self.shape) / self.shape
        return self.loss / float(low), self.loss / float(high)

    def chance_above(self, level: float) -> float:
        """How sure it is that others of the same space would lose more than `level` on average."""
        if level <= 0 or not self.loss > 0:
            return float(self.loss > level)
        return float(stats.gamma.cdf(self.shape * (self.loss / level), self.shape))


def expected_best(costs: FloatArray, n: float) -> float:
    """Mean of the best of n of these trials, drawn without replacement; a draw of failed trials alone counts as the worst result.

    Exact, without drawing any: the mean over ranks, weighted with the chance that the best drawn has that rank. n between 1 and
    the number of trials need not be whole.
    """
    ordered = _ordered(costs)
    return float(ordered[0] + _chance_worse(len(ordered), n) @ np.diff(ordered))


def quantiles_of_best(costs: FloatArray, n: int, levels: FloatArray) -> FloatArray:
    """Quantiles (k,), at levels (k,) in 0..1, of the best of n trials drawn with replacement from these, costs (N,), N >= 1.

    What a bootstrap of endless draws gives: the best is among the k best of N with probability 1 - (1 - k/N)^n. Infinite where that
    trial failed.
    """
    ordered = np.sort(np.where(np.isnan(costs), np.inf, costs))
    ranks = np.ceil(-len(ordered) * np.expm1(np.log1p(-levels) / n) - 1e-9)
    return ordered[np.clip(ranks, 1, len(ordered)).astype(np.int64) - 1]


def halving(costs: FloatArray) -> Halving:
    """What half as many trials would have lost; costs (n,), n >= 4, at least one of them not NaN.

    The loss is a sum over the gaps between neighbours in rank. Gaps between the best of many independent trials are about
    independent and exponential (Renyi), so that half the sum of their squares estimates the variance of the sum.
    """
    ordered = _ordered(costs)
    n, gaps = len(ordered), np.diff(ordered)
    largest = gaps.max(initial=0.0)
    if not largest > 0:
        return Halving(0.0, 1.0, _CALMEST)
    gaps = gaps / largest  # costs may be huge
    parts = _chance_worse(n, n / 2) * gaps
    losses = [0.0, *(float(_chance_worse(n, n / k) @ gaps) for k in (2, 4, 8) if n / k >= 1)]
    variance = float((parts**2).sum()) / 2
    later, before = losses[-2], losses[-1] - losses[1]
    fade = float(np.clip(later / before, _CALMEST, 1.0)) if before > 0 and len(losses) > 3 else _USUAL
    shape = losses[1] ** 2 / variance if variance > 0 else 1.0
    return Halving(losses[1] * float(largest), shape, fade)


def _ordered(costs: FloatArray) -> FloatArray:
    return np.sort(np.where(np.isnan(costs), np.nanmax(costs), costs))


def _chance_worse(total: int, drawn: float) -> FloatArray:
    """Chance that the best of `drawn` among `total` comes after rank 1, 2, ..., total - 1; shape (total - 1,)."""
    left = total - np.arange(1, total, dtype=np.float64)
    possible = left >= drawn - 1e-9
    left = np.where(possible, left, total)
    chance = np.exp(gammaln(left + 1) - gammaln(left - drawn + 1) - gammaln(total + 1) + gammaln(total - drawn + 1))
    return np.asarray(np.where(possible, chance, 0.0), dtype=np.float64)
