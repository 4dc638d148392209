"""Promises over simulated studies: few studies in `make test`, all of them in `make test-slow`."""

from __future__ import annotations

import os

from scipy import stats

ALL = os.environ.get("ADVISOR_TESTS") == "all"
SIGNIFICANT = 0.04
"""About two standard errors: more false alarms than that are none that a rule that keeps its promise may well raise."""


def studies(count: int) -> range:
    """Seeds of the studies to simulate: `count` of them in a whole run, a third in a quick one."""
    return range(1, 1 + (count if ALL else -(-count // 3)))


def kept(alarms: int, asked: int, promised: float = 0.05) -> bool:
    """Whether so many false alarms in so many studies are no more than a rule that keeps its promise may well raise."""
    return bool(stats.binom.sf(alarms - 1, asked, promised) > SIGNIFICANT)
