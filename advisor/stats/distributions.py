"""Distributions and rank statistics by the names that `scipy.stats` has for them, and of the same values.

Importing `scipy.stats` takes longer than many a study takes to be judged. What is called here is what it calls itself, in
`scipy.special`; arguments are not checked.
"""

# ruff: noqa: D102, N801 - the names are SciPy's, and what they mean

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from scipy import special
from scipy.optimize import brentq

from advisor.model.space import FloatArray, IntArray


class norm:
    """The normal distribution of mean 0 and variance 1."""

    @staticmethod
    def cdf(x: Any) -> Any:
        return special.ndtr(x)

    @staticmethod
    def sf(x: Any) -> Any:
        return special.ndtr(-x)

    @staticmethod
    def ppf(q: Any) -> Any:
        return special.ndtri(q)

    @staticmethod
    def isf(q: Any) -> Any:
        return -special.ndtri(q)


class t:
    """Student's t distribution."""

    @staticmethod
    def cdf(x: Any, freedom: Any) -> Any:
        return special.stdtr(freedom, x)

    @staticmethod
    def sf(x: Any, freedom: Any) -> Any:
        return special.stdtr(freedom, -x)

    @staticmethod
    def ppf(q: Any, freedom: Any) -> Any:
        return special.stdtrit(freedom, q)

    @staticmethod
    def isf(q: Any, freedom: Any) -> Any:
        return -special.stdtrit(freedom, q)


class f:
    """Fisher's F distribution."""

    @staticmethod
    def sf(x: Any, freedom: Any, below: Any) -> Any:
        return special.fdtrc(freedom, below, x)

    @staticmethod
    def ppf(q: Any, freedom: Any, below: Any) -> Any:
        return special.fdtri(freedom, below, q)


class chi2:
    """The chi-squared distribution."""

    @staticmethod
    def sf(x: Any, freedom: Any) -> Any:
        return special.chdtrc(freedom, x)

    @staticmethod
    def ppf(q: Any, freedom: Any) -> Any:
        return 2 * special.gammaincinv(freedom / 2, q)


class beta:
    """The beta distribution."""

    @staticmethod
    def sf(x: Any, a: Any, b: Any) -> Any:
        return special.betaincc(a, b, x)


class gamma:
    """The gamma distribution of scale 1."""

    @staticmethod
    def cdf(x: Any, shape: Any) -> Any:
        return special.gammainc(shape, x)

    @staticmethod
    def ppf(q: Any, shape: Any) -> Any:
        return special.gammaincinv(shape, q)


class binom:
    """The binomial distribution of single numbers."""

    @staticmethod
    def cdf(k: float, n: int, p: float) -> float:
        whole = math.floor(k)
        return 0.0 if whole < 0 else 1.0 if whole >= n else float(special.betaincc(whole + 1, n - whole, p))

    @staticmethod
    def sf(k: float, n: int, p: float) -> float:
        whole = math.floor(k)
        return 1.0 if whole < 0 else 0.0 if whole >= n else float(special.betainc(whole + 1, n - whole, p))


class betabinom:
    """The beta-binomial distribution: n draws whose chance is itself drawn from a beta distribution."""

    @staticmethod
    def cdf(n: int, a: float, b: float) -> FloatArray:
        """How likely at most k of n are, for each k from 0 on, shape (n + 1,)."""
        k = np.arange(n + 1)
        ways = -math.log(n + 1) - special.betaln(n - k + 1, k + 1)
        chance = np.exp(ways + special.betaln(k + a, n - k + b) - special.betaln(a, b))
        return np.asarray(np.cumsum(chance), dtype=np.float64)


class normal_range:
    """The range of k >= 2 normal values: the studentized range distribution whose freedom is infinite."""

    _NODES, _WEIGHTS = np.polynomial.legendre.leggauss(160)
    _END = 9.0

    @classmethod
    def sf(cls, x: float, k: int) -> float:
        z = cls._END * cls._NODES
        within = special.ndtr(z + x) - special.ndtr(z)
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return (
            max(0.0, 1.0 - k * cls._END * float(np.sum(cls._WEIGHTS * density * within ** (k - 1)))) if x > 0 else 1.0
        )

    @classmethod
    def isf(cls, q: float, k: int) -> float:
        return float(brentq(lambda x: cls.sf(x, k) - q, 0.0, 40.0, xtol=1e-13))


# --- ranks and tests ------------------------------------------------------------------------------------------------------------


def rankdata(values: FloatArray) -> FloatArray:
    """Ranks of values (n,) without NaN, from 1 on; equal ones share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(ranks[place], dtype=np.float64)


def p_of_ranks(a: FloatArray, b: FloatArray, alternative: Literal["greater", "less"]) -> float:
    """p-value of the rank correlation of two arrays (n,), neither of them constant, by Student's t."""
    r = float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
    freedom = len(a) - 2
    score = r * math.sqrt(max(freedom / ((r + 1) * (1 - r)), 0.0)) if abs(r) < 1 else math.copysign(math.inf, r)
    return float(t.sf(score if alternative == "greater" else -score, freedom))


def false_discovery_control(p: FloatArray) -> FloatArray:
    """p-values (n,) corrected for all of them together (Benjamini and Hochberg)."""
    order = np.argsort(p)
    scaled = p[order] * (len(p) / np.arange(1, len(p) + 1))
    corrected = np.empty(len(p))
    corrected[order] = np.clip(np.minimum.accumulate(scaled[::-1])[::-1], 0.0, 1.0)
    return corrected


def p_of_even_counts(counts: IntArray) -> float:
    """p-value of counts (k,), k >= 2, by the chi-squared test of all of them being expected alike."""
    expected = counts.mean()
    return float(chi2.sf(np.sum((counts - expected) ** 2 / expected), len(counts) - 1))


def p_of_uniform(values: FloatArray) -> float:
    """p-value of values (n,) in 0..1 by the test of Kolmogorov and Smirnov, two-sided.

    Twice the one-sided p-value: where that is 0.1 it is too large by 1e-5 at most, and below by far less.
    """
    n, x = len(values), np.sort(values)
    above, below = np.max(np.arange(1, n + 1) / n - x), np.max(x - np.arange(n) / n)
    return min(1.0, 2 * float(special.smirnov(n, max(above, below))))
