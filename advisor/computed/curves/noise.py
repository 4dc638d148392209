"""Random differences between results of equally good settings, and a test if they explain all differences between trials."""

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
_BEST = 3
"""Number of best trials from which the noise between evaluations is measured."""
_MAX_RESULTS = 1000
"""Maximum number of results to use in the test of normality."""
_CERTAIN = 0.01


def of_seeds(study: Study) -> tuple[float, bool]:
    """Return (standard deviation between seeds, True with at least 3 degrees of freedom); (0, False) without repeats."""
    variance = repeats.trial_variance(repeats.settings(study))
    return (variance[0], variance[1] >= _MIN_FREEDOM) if variance is not None else (0.0, False)


def as_much_between_seeds(study: Study, trials: Sequence[Trial], level: float) -> bool:
    """Return whether repeats of one setting are known to differ as much as these trials, by a studentized range test.

    Then better evaluations would not rank the trials; only more seeds would.
    """
    deviation, known = of_seeds(study)
    costs = study.costs[[t.index for t in trials]]
    return known and len(costs) > 1 and heterogeneity(costs, np.full(len(costs), deviation), level).p > level


def of_steps(study: Study) -> float:
    """Return the standard deviation of a best result due to noise between evaluations: the maximum over the best three trials.

    This deviation is smaller than the one between seeds, but needs no repeats; 0 if there are too few evaluations.
    """
    around = [step_noise.around_best(study.cost_curve(t).finite.values) for t in study.ranked()[:_BEST]]
    known = [a for a in around if a is not None]
    return max((step_noise.redraw_ranking([a, a]).spread for a in known), default=0.0)


def chance(tried: Settings, largest: float) -> float:
    """Return the p-value that 3 or more results differ only by normal noise that does not depend on the hyperparameters.

    The p-value is twice the smaller one of two tests:
    - Dependence on a hyperparameter (`boundaries.crowding`), combined by Fisher's method with departure from normality
      (Shapiro-Wilk, after undoing rounding). Dependence is not tested if the p-value is at most 1 % without it.
    - Scatter above the standard deviation between seeds, at most `largest` as a share of the result; results need the same sign.
    """
    fine = tried.costs[~tried.failed]
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.ptp(fine)) or not np.ptp(fine) > 0:
            return float(not np.ptp(fine) > 0)
    some = fine if len(fine) <= _MAX_RESULTS else fine[np.linspace(0, len(fine) - 1, _MAX_RESULTS).astype(np.int64)]
    shape = float(stats.shapiro(_unrounded((some - some.mean()) / np.ptp(some))).pvalue)
    spread, typical = 1.0, abs(float(np.median(fine)))
    if typical > 0 and (fine.min() > 0 or fine.max() < 0):
        squares = float(np.sum(((fine - fine.mean()) / typical) ** 2)) / largest**2
        spread = float(stats.chi2.sf(squares, len(fine) - 1))
    bound = 2 * min(_together(shape, 1.0), spread)
    axes = [*tried.numeric.values(), *tried.choices.values()]
    if bound <= _CERTAIN or not axes:
        return min(1.0, bound)
    goes = float(boundaries.crowding(np.stack(axes, axis=1), boundaries.scores(tried.costs)).min())
    return min(1.0, 2 * min(_together(shape, goes), spread))


def _together(shape: float, goes: float) -> float:
    """Combine two independent positive p-values by Fisher's method."""
    return float(stats.chi2.sf(-2 * (np.log(max(shape, 1e-12)) + np.log(min(goes, 1.0))), 4))


def _unrounded(values: FloatArray) -> FloatArray:
    """Return values (n,) whose ties are spread evenly over the smallest difference between distinct values."""
    levels, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(levels) < 2 or counts.max() < 2:
        return values
    order = np.argsort(where, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.empty(len(values))
    rank[order] = np.arange(len(values)) - np.repeat(first, counts)
    apart = (rank + 0.5) / counts[where] - 0.5
    return np.asarray(values + apart * np.diff(levels).min(), dtype=np.float64)
