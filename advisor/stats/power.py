"""Computes the power of the test for a hyperparameter's effect: the smallest detectable effect, and the number of trials that
detect a given effect.

An effect is the difference of the response between both ends of a range, in standard deviations of the noise. The test is an
F-test of a quadratic response along one of several ranges over which trials are spread uniformly. An effect x in n trials has
noncentrality n x² / 12, because a straight line that rises by x has the variance x² / 12.
"""

from __future__ import annotations

import math

from scipy import optimize, stats

SIGNIFICANCE_LEVEL = 0.01
"""Significance level that `importance.Response.p_value` uses for the effect of a single hyperparameter."""
TARGET_POWER = 0.8
"""Probability with which a study should detect an existing effect."""
_RESPONSE_TERMS = 2
"""Number of terms, linear and quadratic, of the response that is fitted along one range."""
_MAX_NEEDED_TRIALS = 100_000


def detectable_effect(trials: int, axes: int) -> float:
    """Return the smallest effect that `trials` trials detect with probability `TARGET_POWER`; infinite for fewer than 5 trials.

    axes: number of searched hyperparameters, by which `SIGNIFICANCE_LEVEL` is divided (Bonferroni).
    """
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
    """Return the smallest number of trials that detects the effect with probability `TARGET_POWER`, but at most 100,000."""
    low, high = _RESPONSE_TERMS + 2, 8
    while high < _MAX_NEEDED_TRIALS and detectable_effect(high, axes) > effect:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detectable_effect(middle, axes) <= effect else (middle, high)
    return min(high, _MAX_NEEDED_TRIALS)
