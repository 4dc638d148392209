"""Finds a best trial that leads only because its evaluations vary most: the best of many noisy values is a lucky one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from advisor.computed.curves import step_noise
from advisor.model.study import Study, Trial

NOISIER = 2.0
"""Minimum ratio of the best trial's noise between evaluations to that of the trial it is compared with."""
_LEVEL = 0.05
"""Maximum probability that the other trial is at least as good for a lead to count as more than luck."""
_MAX_RIVALS = 10
"""Maximum number of next best trials to search for one with less noise."""
_DRAWS = 500
_VARIANCE = 0.94
"""Variance of a lead by luck, in units of the variance of one evaluation: 0.66 for the smooth course, 0.28 for the best of 20."""


@dataclass(frozen=True)
class Luck:
    """The best trial, the best of the trials with less noise, and the lead that noise alone explains."""

    best: Trial
    rival: Trial
    lead: float
    """Difference of the best costs."""
    luck: float
    """Expected lead if both courses were equal in their best values."""
    noise: float
    """Standard deviation of the best trial's noise between evaluations."""
    less: float
    """The same for the other trial."""
    probability: float
    """Probability that the other trial is at least as good: 0.5 if the lead is exactly the expected one."""


def of_best(study: Study) -> Luck | None:
    """Return the luck of the best trial if its lead over a trial with less noise is not clearly more than luck, else None."""
    ranked = study.ranked()
    if len(ranked) < 2 or (own := _around(study, ranked[0])) is None:
        return None
    for rival in ranked[1 : _MAX_RIVALS + 1]:
        other = _around(study, rival)
        if other is None or not 0 < NOISIER * _noise(other) <= _noise(own):
            continue
        lead = float(study.costs[rival.index] - study.costs[ranked[0].index])
        luck = _gain_by_luck(own) - _gain_by_luck(other)
        error = math.sqrt(_VARIANCE) * math.hypot(_noise(own), _noise(other))
        # The posterior of the lead beyond luck under a flat prior: nothing else is known about the two trials.
        probability = float(stats.norm.cdf((luck - lead) / error))
        found = Luck(ranked[0], rival, lead, luck, _noise(own), _noise(other), probability)
        return found if lead > 0 and probability > _LEVEL else None
    return None


def _around(study: Study, trial: Trial) -> step_noise.Around | None:
    return step_noise.around_best(study.cost_curve(trial).finite.values)


def _noise(around: step_noise.Around) -> float:
    """Return the noise of one evaluation; `Around.noise` is the lowest of several estimates, too low for estimating luck."""
    return max(around.noise, float(np.std(around.rest)))


def _gain_by_luck(around: step_noise.Around) -> float:
    """Return the expected difference between the best point of the smooth course and the best evaluation."""
    noise = _noise(around) * np.random.default_rng(0).standard_normal((_DRAWS, len(around.course)))
    return float(around.course.min() - (around.course + noise).min(axis=1).mean())
