"""Detects a best trial that leads only because its evaluations are the noisiest: the lowest of many noisy costs is low
by chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.computed.curves import step_noise
from advisor.model.study import Study, Trial
from advisor.stats.curve import smooth_savgol

MIN_EVALUATION_NOISE_RATIO = 2.0
"""Minimum ratio of the best trial's noise between evaluations to the noise of the trial with which it is compared."""
_MAX_LUCK_PROBABILITY = 0.05
"""Maximum probability that the other trial is at least as good, for the best trial's lead to count as more than luck."""
_MAX_RIVAL_TRIALS = 10
"""Maximum number of trials after the best one, in the order of results, that are searched for a trial with less noise."""
_N_NOISE_DRAWS = 500
_LUCKY_LEAD_VARIANCE = 0.94
"""Variance of a lead due to chance, in units of the noise variance of one evaluation: 0.66 from the estimate of the smooth
curve and 0.28 from the best of 20 evaluations.
"""


@dataclass(frozen=True)
class EvaluationLuck:
    """The best trial, the best one among the trials with less noisy evaluations, and the lead between the two that noise alone
    explains."""

    best: Trial
    rival: Trial
    observed_lead: float
    """Difference between the best costs of the two trials."""
    expected_lead: float
    """Expected lead if the smooth curves of both trials had equal minima."""
    best_noise_sd: float
    """Standard deviation of the best trial's noise between evaluations."""
    rival_noise_sd: float
    """Standard deviation of the other trial's noise between evaluations."""
    rival_as_good_probability: float
    """Probability that the other trial is at least as good; 0.5 if the lead equals the lead that is expected by chance."""


def find_lucky_lead(study: Study) -> EvaluationLuck | None:
    """Return the lead that noise explains; None if noise does not explain the best trial's lead over a trial with less noisy
    evaluations."""
    best_first = study.ranked()
    if len(best_first) < 2 or (best_part := _half_around_best(study, best_first[0])) is None:
        return None
    for rival in best_first[1 : _MAX_RIVAL_TRIALS + 1]:
        rival_part = _half_around_best(study, rival)
        if rival_part is None or not 0 < MIN_EVALUATION_NOISE_RATIO * _evaluation_noise_sd(rival_part) <= _evaluation_noise_sd(
            best_part
        ):
            continue
        lead = float(study.costs[rival.index] - study.costs[best_first[0].index])
        luck = _expected_noise_gain(best_part) - _expected_noise_gain(rival_part)
        error = math.sqrt(_LUCKY_LEAD_VARIANCE) * math.hypot(_evaluation_noise_sd(best_part), _evaluation_noise_sd(rival_part))
        # Use a flat prior on the difference between the minima of the two smooth curves.
        probability = float(stats.norm.cdf((luck - lead) / error))
        found = EvaluationLuck(
            best_first[0], rival, lead, luck, _evaluation_noise_sd(best_part), _evaluation_noise_sd(rival_part), probability
        )
        return found if lead > 0 and probability > _MAX_LUCK_PROBABILITY else None
    return None


def _half_around_best(study: Study, trial: Trial) -> step_noise.HalfAroundBest | None:
    return step_noise.split_around_best(study.cost_curve(trial).finite.values)


def _evaluation_noise_sd(around: step_noise.HalfAroundBest) -> float:
    """Return the standard deviation of one evaluation's noise. `HalfAroundBest.noise_sd` alone is too low, because it is the
    lowest of several estimates."""
    return max(around.noise_sd, float(np.std(around.residuals)))


def _expected_noise_gain(around: step_noise.HalfAroundBest) -> float:
    """Return the expected difference between the minimum of the true smooth curve and the lowest evaluation.

    The true curve is estimated by a single parabola, because local parabolas follow the noise and would pass close to the
    lowest evaluation.
    """
    points = around.smooth_curve + around.residuals
    course = smooth_savgol(points, len(points) - 1 + len(points) % 2)
    noise = _evaluation_noise_sd(around) * np.random.default_rng(0).standard_normal((_N_NOISE_DRAWS, len(course)))
    return float(course.min() - (course + noise).min(axis=1).mean())
