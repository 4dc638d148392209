"""How far results of equally good settings differ by chance, and whether that may be all that trials differ by."""

from __future__ import annotations

import numpy as np
from scipy import stats

from advisor.computed.curves import step_noise
from advisor.computed.decision import repeats
from advisor.computed.space.settings import Settings
from advisor.model.space import FloatArray
from advisor.model.study import Study
from advisor.stats import boundaries

_FREEDOM = 3
_BEST = 3
_MOST = 1000
_SURELY = 0.01


def of_seeds(study: Study) -> tuple[float, bool]:
    """(standard deviation between seeds, whether that is well known: 3 degrees of freedom or more); (0, False) without repeats."""
    variance = repeats.trial_variance(repeats.settings(study))
    return (variance[0], variance[1] >= _FREEDOM) if variance is not None else (0.0, False)


def of_steps(study: Study) -> float:
    """Standard deviation of a best result that is due to the luck of the step, the largest of the best three trials'.

    Less than what seeds do, but known without repeats; 0 where there are too few evaluations to tell.
    """
    around = [step_noise.around_best(study.cost_curve(t).finite.values) for t in study.ranked()[:_BEST]]
    known = [a for a in around if a is not None]
    return max((step_noise.ranking_luck([a, a]).spread for a in known), default=0.0)


def chance(tried: Settings, largest: float) -> float:
    """How often noise alone would make settings that are all equally good look as different as these; needs 3 results.

    Noise is taken for normal, and not to depend on the hyperparameters. Three ways in which results may differ otherwise. They go
    with a hyperparameter (`space.crowding`); they are not spread as a normal distribution is (Shapiro and Wilk), what was rounded
    spread over what it was rounded from: these two are independent, and combined (Fisher). Or they are spread more than seeds do,
    whose standard deviation is taken to be `largest` at most, as a share of the result; that is asked where all results have one
    sign, so that shares of them mean something. The smaller p-value counts, twice; where it is 1 % or less without the first of
    the three, that is not asked.
    """
    fine = tried.costs[~tried.failed]
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.ptp(fine)) or not np.ptp(fine) > 0:
            return float(not np.ptp(fine) > 0)
    some = fine if len(fine) <= _MOST else fine[np.linspace(0, len(fine) - 1, _MOST).astype(np.int64)]
    shape = float(stats.shapiro(_unrounded((some - some.mean()) / np.ptp(some))).pvalue)
    spread, typical = 1.0, abs(float(np.median(fine)))
    if typical > 0 and (fine.min() > 0 or fine.max() < 0):
        squares = float(np.sum(((fine - fine.mean()) / typical) ** 2)) / largest**2
        spread = float(stats.chi2.sf(squares, len(fine) - 1))
    most = 2 * min(_together(shape, 1.0), spread)
    axes = [*tried.numeric.values(), *tried.choices.values()]
    if most <= _SURELY or not axes:
        return min(1.0, most)
    goes = float(boundaries.crowding(np.stack(axes, axis=1), boundaries.scores(tried.costs)).min())
    return min(1.0, 2 * min(_together(shape, goes), spread))


def _together(shape: float, goes: float) -> float:
    """Two independent p-values, greater than 0, as one (Fisher)."""
    return float(stats.chi2.sf(-2 * (np.log(max(shape, 1e-12)) + np.log(min(goes, 1.0))), 4))


def _unrounded(values: FloatArray) -> FloatArray:
    """Values (n,), those that are the same spread evenly over the smallest step between any two that are not."""
    levels, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(levels) < 2 or counts.max() < 2:
        return values
    order = np.argsort(where, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.empty(len(values))
    rank[order] = np.arange(len(values)) - np.repeat(first, counts)
    apart = (rank + 0.5) / counts[where] - 0.5
    return np.asarray(values + apart * np.diff(levels).min(), dtype=np.float64)
