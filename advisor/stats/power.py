"""Computes the power of the test for a hyperparameter's effect.

An effect is the difference of the response between both ends of a range, in standard deviations of the noise. The test is an
F-test of a quadratic response along one of several ranges over which trials are spread uniformly. An effect x in n trials has
noncentrality n x² / 12, because a straight line that rises by x has the variance x² / 12.
"""

from __future__ import annotations

import bisect
import math

from scipy import optimize, stats

SIGNIFICANCE_LEVEL = 0.01
"""Level of `importance.Response.p_value` for a single hyperparameter."""
TARGET_POWER = 0.8
"""Probability with which a study should detect an existing effect."""
_RESPONSE_TERMS = 2
"""Linear and quadratic terms of the response along one range."""
_MAX_NEEDED_TRIALS = 100_000


def detectable_effect(trials: int, axes: int) -> float:
    """Return the smallest effect that `trials` trials detect with probability `TARGET_POWER`; inf for fewer than 5. axes:
    number of searched hyperparameters, by which `SIGNIFICANCE_LEVEL` is divided (Bonferroni)."""
    freedom = trials - _RESPONSE_TERMS - 1
    if freedom < _RESPONSE_TERMS:
        return math.inf
    critical = float(stats.f.isf(SIGNIFICANCE_LEVEL / max(axes, 1), _RESPONSE_TERMS, freedom))

    def power_shortfall(noncentrality: float) -> float:
        return float(stats.ncf.sf(critical, _RESPONSE_TERMS, freedom, noncentrality)) - TARGET_POWER

    high = 10.0
    while power_shortfall(high) < 0:
        high *= 2
    noncentrality = float(optimize.brentq(power_shortfall, 0.0, high, xtol=1e-3))
    return math.sqrt(12 * noncentrality / trials)


def trials_needed(effect: float, axes: int) -> int:
    """Return the smallest number of trials that detects the effect with probability `TARGET_POWER`, at most 100,000."""
    first = _RESPONSE_TERMS + 3
    sizes = range(first, _MAX_NEEDED_TRIALS)
    return first + bisect.bisect_left(sizes, True, key=lambda trials: detectable_effect(trials, axes) <= effect)
