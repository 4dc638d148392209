"""Random differences between results of equally good settings, and a test of whether they explain all differences between
trials.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from advisor.computed.curves import step_noise
from advisor.computed.decision import repeats
from advisor.computed.space.settings import Settings
from advisor.model.space import FloatArray
from advisor.model.study import Study, Trial
from advisor.stats import boundaries
from advisor.stats.heterogeneity import heterogeneity

_MIN_FREEDOM = 3
"""Minimum degrees of freedom of a reliable standard deviation between seeds."""
_BEST = 3
"""Number of best trials from which the noise between evaluations is measured."""
_MAX_RESULTS = 1000
"""Maximum number of results to use in the test of normality."""
_MAX_P_WITHOUT_AXES = 0.01
"""At or below this p-value of scatter, dependence on the hyperparameters is not tested."""


def noise_between_seeds(study: Study) -> tuple[float, bool]:
    """Return (standard deviation between seeds, True if it has at least 3 degrees of freedom); (0, False) without repeats."""
    variance = repeats.trial_variance(repeats.settings(study))
    return (variance[0], variance[1] >= _MIN_FREEDOM) if variance is not None else (0.0, False)


def is_seed_noise_as_large(study: Study, trials: Sequence[Trial], level: float) -> bool:
    """Return True if repeats of one setting are known to differ as much as these trials (studentized range test).

    If they do, only more seeds can rank the trials; better evaluations cannot.
    """
    deviation, is_measured = noise_between_seeds(study)
    costs = study.costs[[t.index for t in trials]]
    return is_measured and len(costs) > 1 and heterogeneity(costs, np.full(len(costs), deviation), level).p > level


def noise_between_steps(study: Study) -> float:
    """Return the standard deviation of a best result due to noise between evaluations; 0 if there are too few evaluations.

    The result is the maximum over the best three trials. This noise is smaller than the deviation between seeds, but can be
    measured without repeats.
    """
    best_parts = [step_noise.around_best(study.cost_curve(t).finite.values) for t in study.ranked()[:_BEST]]
    measured = [a for a in best_parts if a is not None]
    return max((step_noise.redraw_ranking([a, a]).spread for a in measured), default=0.0)


def p_of_noise(tried: Settings, max_sd: float) -> float:
    """Return the p-value of the hypothesis that 3 or more results differ only by normal noise, whatever the hyperparameters.

    The p-value is twice the smaller one of two tests:
    - Dependence on a hyperparameter (`boundaries.p_of_crowding`), combined by Fisher's method with departure from normality
      (Shapiro-Wilk, after undoing rounding). Dependence is not tested if the other test already gives at most 1 %.
    - Scatter above the standard deviation between seeds, at most `max_sd` as a share of the result; results need the same sign.
    """
    costs = tried.costs[~tried.failed]
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.ptp(costs)) or not np.ptp(costs) > 0:
            return float(not np.ptp(costs) > 0)
    sample = (
        costs if len(costs) <= _MAX_RESULTS else costs[np.linspace(0, len(costs) - 1, _MAX_RESULTS).astype(np.int64)]
    )
    p_normal = float(stats.shapiro(_unrounded((sample - sample.mean()) / np.ptp(sample))).pvalue)
    p_scatter, typical = 1.0, abs(float(np.median(costs)))
    if typical > 0 and (costs.min() > 0 or costs.max() < 0):
        squares = float(np.sum(((costs - costs.mean()) / typical) ** 2)) / max_sd**2
        p_scatter = float(stats.chi2.sf(squares, len(costs) - 1))
    bound = 2 * min(_combined_p(p_normal, 1.0), p_scatter)
    axes = [*tried.numeric.values(), *tried.choices.values()]
    if bound <= _MAX_P_WITHOUT_AXES or not axes:
        return min(1.0, bound)
    p_axes = float(boundaries.p_of_crowding(np.stack(axes, axis=1), boundaries.rank_scores(tried.costs)).min())
    return min(1.0, 2 * min(_combined_p(p_normal, p_axes), p_scatter))


def _combined_p(one: float, other: float) -> float:
    """Combine two independent positive p-values by Fisher's method."""
    return float(stats.chi2.sf(-2 * (np.log(max(one, 1e-12)) + np.log(min(other, 1.0))), 4))


def _unrounded(values: FloatArray) -> FloatArray:
    """Return the values (n,) with equal values spread evenly over the smallest difference between distinct values."""
    levels, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(levels) < 2 or counts.max() < 2:
        return values
    order = np.argsort(where, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.empty(len(values))
    rank[order] = np.arange(len(values)) - np.repeat(first, counts)
    offsets = (rank + 0.5) / counts[where] - 0.5
    return np.asarray(values + offsets * np.diff(levels).min(), dtype=np.float64)
