"""The best of n trials and how it depends on n, exactly, without drawing samples. Lower is better; NaN is a failed trial."""

from __future__ import annotations

import math

import numpy as np

from advisor.space import FloatArray


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
