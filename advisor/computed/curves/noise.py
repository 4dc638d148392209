"""Estimates noise: random differences between the results of equally good settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from advisor.computed.curves import step_noise
from advisor.computed.decision import repeats
from advisor.model.space import BoolArray
from advisor.model.study import Study, Trial
from advisor.stats.heterogeneity import measure_heterogeneity

_MIN_DEGREES_OF_FREEDOM = 3
"""Minimum degrees of freedom for a reliable estimate of the standard deviation between seeds."""
_NUMBER_OF_BEST_TRIALS = 3
"""Number of best trials from whose curves the noise between evaluations is measured."""
DIFFERENCE_BOUND_IN_SDS = 2 * math.sqrt(2)
"""Upper 95 % bound of the difference between two equally good results, in standard deviations of one result's noise."""


def noise_between_seeds(study: Study) -> tuple[float, bool]:
    """Return (standard deviation of results between seeds, True if it has at least 3 degrees of freedom and is thus reliable);
    (0, False) without repeats."""
    variance = repeats.variance_between_seeds(repeats.full_length_settings(study))
    return (variance[0], variance[1] >= _MIN_DEGREES_OF_FREEDOM) if variance is not None else (0.0, False)


def seed_noise_explains_differences(study: Study, trials: Sequence[Trial], level: float) -> bool:
    """Return True if repeats of one setting differ as much as the results of the given trials (studentized range test).

    With seed noise as large as the trials' differences, only more seeds can rank the trials; more precise evaluations cannot.
    """
    deviation, is_measured = noise_between_seeds(study)
    costs = study.costs[[t.index for t in trials]]
    return (
        is_measured and len(costs) > 1 and measure_heterogeneity(costs, np.full(len(costs), deviation), level).p_value > level
    )


def noise_between_evaluations(study: Study) -> float:
    """Return the standard deviation of a trial's best result that noise between evaluations causes; 0 for too few evaluations.

    The returned value is the maximum over those of the best three trials that are as good as the best one within its noise,
    because noise is often larger in worse trials. Noise between evaluations is smaller than noise between seeds, but it can be
    measured without repeats.
    """
    best_first = [
        (float(study.costs[t.index]), _noise_of_best_result(study, t)) for t in study.ranked()[:_NUMBER_OF_BEST_TRIALS]
    ]
    known = [(cost, sd) for cost, sd in best_first if math.isfinite(sd)]
    bound = known[0][0] + DIFFERENCE_BOUND_IN_SDS * known[0][1] if known else 0.0
    return max((sd for cost, sd in known if cost <= bound), default=0.0)


def is_worse_beyond_noise(study: Study) -> BoolArray:
    """Return the mask of the trials whose result is worse than the best one by a relevant difference and by more than noise:
    between seeds or, if it is unknown, between evaluations. A trial of unknown noise is never worse. Shape (n,)."""
    mask, ranked = np.zeros(len(study.trials), dtype=np.bool_), study.ranked()
    if not ranked:
        return mask
    between_seeds, is_measured = noise_between_seeds(study)
    best, *others = ranked
    best_cost = float(study.costs[best.index])
    own = between_seeds if is_measured else _noise_of_best_result(study, best)
    for trial in others:
        noise = between_seeds if is_measured else _noise_of_best_result(study, trial)
        limit = max(2 * math.hypot(own, noise), repeats.min_relevant_difference(study.objective_value(best_cost)))
        mask[trial.index] = study.costs[trial.index] - best_cost > limit
    return mask


def _noise_of_best_result(study: Study, trial: Trial) -> float:
    """Return the standard deviation of a trial's best result that noise between evaluations causes; NaN for too few
    evaluations."""
    half = step_noise.split_around_best(study.cost_curve(trial).finite.values)
    return math.nan if half is None else step_noise.redraw_ranking([half, half]).best_cost_sd
