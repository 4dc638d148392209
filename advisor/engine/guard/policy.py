"""Decides when to report that a running trial cannot become the best trial of its study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from advisor.model.space import FloatArray, IntArray

_MIN_SLOPE_POINTS = 3
_RECENT_STEP_SHARE = 1 / 3
"""Share of the steps so far that counts as recent; chosen on the curves of `benchmarks/quality/guard.py`."""
_MIN_SLOPE_SPAN = 0.1
"""Minimum distance of two points that determine a slope, as a share of the points so far; closer points differ mostly by noise."""


@dataclass(frozen=True, eq=False)
class TrialProgress:
    """The evaluations of one trial, as costs (lower is better), sorted by step."""

    steps: IntArray | FloatArray
    """Steps of the evaluations, shape (n,), strictly increasing."""
    costs: FloatArray
    """Costs of the evaluations, shape (n,); may be non-finite."""
    length: float
    """Planned length of the trial in steps."""

    @cached_property
    def _finite_costs(self) -> FloatArray:
        return np.where(np.isfinite(self.costs), self.costs, np.inf)

    @cached_property
    def best(self) -> FloatArray:
        """Lowest cost up to each evaluation, shape (n,); inf before the first finite cost."""
        return np.minimum.accumulate(self._finite_costs)

    @cached_property
    def final(self) -> float:
        """Lowest cost over all evaluations."""
        return float(self.best[-1])

    @cached_property
    def median_recent_costs(self) -> FloatArray:
        """Median of the last three costs up to each evaluation, shape (n,)."""
        padded_costs = np.concatenate([np.full(2, self._finite_costs[0]), self._finite_costs])
        return np.asarray(np.median(sliding_window_view(padded_costs, 3), axis=1))

    @cached_property
    def extrapolated_gain(self) -> FloatArray:
        """For each evaluation, the further fall of the cost until the end of training at the steepest recent slope, shape (n,)."""
        return np.array([self._extrapolated_gain_at(at) for at in range(len(self.steps))])

    def _extrapolated_gain_at(self, at: int) -> float:
        if at + 1 < _MIN_SLOPE_POINTS:
            return np.inf
        steps, level = self.steps, self.median_recent_costs
        steps_left = max(0.0, self.length - float(steps[at]))
        first_recent = min(int(np.searchsorted(steps, (1 - _RECENT_STEP_SHARE) * steps[at])), at - 2)
        slope_ends = np.arange(max(first_recent, 1), at + 1)
        slope_starts = np.maximum(slope_ends - max(1, math.ceil(_MIN_SLOPE_SPAN * at)), 0)
        with np.errstate(invalid="ignore"):
            slopes = (level[slope_starts] - level[slope_ends]) / (steps[slope_ends] - steps[slope_starts])
        steepest_slope = float(np.where(np.isnan(slopes), np.inf, slopes).max())
        return max(0.0, steepest_slope) * steps_left if steps_left else 0.0

    def best_until(self, step: float) -> float:
        """Return the lowest cost up to a step; inf if there is none."""
        end = int(self.steps.searchsorted(step, "right"))
        return float(self.best[end - 1]) if end else math.inf


@dataclass(frozen=True, slots=True)
class ImprovementBounds:
    """The decrease of cost that a trial needs after an evaluation to become the best trial, and two bounds of its decrease."""

    step: int
    best: float
    """Lowest cost of the trial so far."""
    incumbent: float
    """Lowest cost of the completed siblings (trials with the same length and schedule)."""
    largest_later_decrease: float
    """Largest decrease of any completed sibling after this step, from the lower of the costs of the trial and the sibling."""
    extrapolated_decrease: float
    """Decrease of the trial's cost until the end of training at its steepest recent slope."""

    @property
    def needed_gain(self) -> float:
        """Decrease of cost that the trial needs to reach the best completed sibling."""
        return self.best - self.incumbent


def exceedance_margin(siblings: int, exceedance: float) -> float:
    """Return a factor m >= 1 such that the value of a trial exceeds m times the largest value of its siblings with a probability of
    at most `exceedance`.

    A new exchangeable value exceeds the largest of n earlier values with probability 1 / (n + 1). A new value exceeds m times
    the largest one with probability at most 1 / (m (n + 1)), unless the tail of the distribution is heavier than 1 / x.
    """
    return max(1.0, 1 / (exceedance * (siblings + 1)))


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds for stopping running trials; `benchmarks/quality/guard.py` chose them by replaying studies."""

    siblings: int = 4
    """Minimum number of siblings (completed trials with the same length and schedule) to judge a trial."""
    evaluations: int = 10
    """Minimum number of evaluations over a complete training run."""
    successive_evaluations: int = 3
    """Number of successive evaluations at which both bounds on the decrease of cost must rule the trial out."""
    exceedance: float = 0.1
    """Accepted probability that a ruled-out trial improves by more than `margin` times its siblings' largest improvement."""
    max_false_stuck_share: float = 0.01
    """Accepted probability that a learning trial is called stuck, because its objective leaves its first value late."""

    def margin(self, siblings: int) -> float:
        return exceedance_margin(siblings, self.exceedance)

    def bounds_if_doomed(self, trial: TrialProgress, at: int, siblings: Sequence[TrialProgress]) -> ImprovementBounds | None:
        """Return the bounds at evaluation `at` (0-based) if, at this and the preceding evaluations, they rule out that the trial
        becomes the best; else None. siblings: completed trials. A trial that is ahead of half of its siblings at the same step is
        never ruled out, because few siblings show how a leading trial continues."""
        first_evaluation = at - self.successive_evaluations + 1
        if first_evaluation < 0 or at + 1 < _MIN_SLOPE_POINTS or len(siblings) < self.siblings:
            return None
        incumbent = min(s.final for s in siblings)
        evaluations = range(at, first_evaluation - 1, -1)
        if any(not float(trial.best[k]) - incumbent > trial.extrapolated_gain[k] for k in evaluations):
            return None
        finals, margin = np.array([s.final for s in siblings]), self.margin(len(siblings))
        bounds = None
        for k in evaluations:
            best, own = float(trial.best[k]), float(trial.extrapolated_gain[k])
            costs = np.array([s.best_until(float(trial.steps[k])) for s in siblings])
            later = math.inf
            if np.isfinite(costs).all():
                later = max(0.0, float((np.minimum(costs, best) - finals).max()))
            if not best - incumbent > margin * later or best <= np.median(costs):
                return None
            bounds = bounds or ImprovementBounds(int(trial.steps[k]), best, incumbent, later, own)
        return bounds

    def has_enough_evaluations(self, siblings: Sequence[TrialProgress]) -> bool:
        """Return True if most siblings have the required number of evaluations."""
        return bool(np.median([len(s.steps) for s in siblings]) >= self.evaluations)
