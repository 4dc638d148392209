"""Ranks of costs: their normal scores, and a selection of trials that is even in rank."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.model.space import FloatArray, IntArray

MAX_TRIALS = 128
"""Maximum number of trials to fit a response to; the fitted trials are evenly spaced in rank."""


def normal_scores(costs: FloatArray) -> FloatArray:
    """Return the ranks of costs (n,), converted to quantiles of the standard normal distribution; NaN costs tie as the worst."""
    ranks = stats.rankdata(np.where(np.isnan(costs), np.inf, costs))
    scores = stats.norm.ppf((ranks - 0.5) / len(ranks))
    spread = scores.std()
    return np.asarray((scores - scores.mean()) / (spread or 1.0), dtype=np.float64)


def choose_evenly_by_rank(costs: FloatArray, max_number: int = MAX_TRIALS) -> IntArray:
    """Return indices of at most `max_number` of the costs (n,), evenly spaced in rank."""
    order = np.argsort(costs, kind="stable")
    return (
        order
        if len(order) <= max_number
        else order[np.linspace(0, len(order) - 1, max_number).round().astype(np.int64)]
    )
