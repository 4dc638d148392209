"""Computes the power of the test for a hyperparameter's effect.

An effect is the difference of the response between both ends of a range, in standard deviations of the noise. The test is an
F-test of a quadratic response along one range; trials are spread uniformly over all ranges. An effect x in n trials has
noncentrality n x² / 12, because a straight line that rises by x has the variance x² / 12.
"""

from __future__ import annotations

import bisect
import math

from scipy import optimize, stats

SIGNIFICANCE_LEVEL = 0.01
"""Significance level of `importance.ResponseModel.p_value` for a single hyperparameter."""
TARGET_POWER = 0.8
"""Probability with which a study should detect an existing effect."""
_RESPONSE_TERMS = 2
"""Number of terms of the response along one range: linear and quadratic."""
_MAX_NEEDED_TRIALS = 100_000


def detectable_effect(trials: int, axes: int) -> float:
    """Return the smallest effect that `trials` trials detect with probability `TARGET_POWER`; inf for fewer than 5 trials. axes:
    number of searched hyperparameters, by which `SIGNIFICANCE_LEVEL` is divided (Bonferroni)."""
    degrees_of_freedom = trials - _RESPONSE_TERMS - 1
    if degrees_of_freedom < _RESPONSE_TERMS:
        return math.inf
    critical_f = float(stats.f.isf(SIGNIFICANCE_LEVEL / max(axes, 1), _RESPONSE_TERMS, degrees_of_freedom))

    def power_above_target(noncentrality: float) -> float:
        return float(stats.ncf.sf(critical_f, _RESPONSE_TERMS, degrees_of_freedom, noncentrality)) - TARGET_POWER

    high_noncentrality = 10.0
    while power_above_target(high_noncentrality) < 0:
        high_noncentrality *= 2
    noncentrality = float(optimize.brentq(power_above_target, 0.0, high_noncentrality, xtol=1e-3))
    return math.sqrt(12 * noncentrality / trials)


def trials_needed(effect: float, axes: int) -> int:
    """Return the smallest number of trials, at most 100,000, that detects the effect with probability `TARGET_POWER`."""
    min_trials = _RESPONSE_TERMS + 3
    trial_counts = range(min_trials, _MAX_NEEDED_TRIALS)
    return min_trials + bisect.bisect_left(trial_counts, True, key=lambda trials: detectable_effect(trials, axes) <= effect)
