"""Tests of promises on simulated studies: a sixth of them in `make test`, all in `make test-slow`."""

from __future__ import annotations

import os

from scipy import stats

ALL = os.environ.get("ADVISOR_TESTS") == "all"
SIGNIFICANT = 0.04
"""Significance level, about two standard errors."""


def studies(count: int) -> range:
    """Return the seeds of the studies: `count` in a full run, a sixth of them in a quick one.

    A quick run takes 6 instead of 7 to 10: two alarms in 6 already break a promise of 5 %, and it takes three in 10.
    """
    sixth = -(-count // 6)
    quick = 6 if 6 < sixth <= 10 else sixth
    return range(1, 1 + (count if ALL else quick))


def kept(alarms: int, asked: int, promised: float = 0.05) -> bool:
    """Whether the number of false alarms is consistent with the promised rate."""
    return bool(stats.binom.sf(alarms - 1, asked, promised) > SIGNIFICANT)


def scaled(bound: float, of: int) -> float:
    """Return the bound for the studies of this run that is the same share of them as `bound` is of all `of` studies."""
    return bound * len(studies(of)) / of
