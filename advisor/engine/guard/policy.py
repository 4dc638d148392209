"""Decides when to report that a running trial cannot become the best trial of its study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from advisor.model.space import FloatArray, IntArray
from advisor.stats import reach


@dataclass(frozen=True, eq=False)
class TrialProgress:
    """The evaluations of one trial, as costs (lower is better), sorted by step."""

    steps: IntArray | FloatArray
    """Shape (n,), strictly increasing."""
    costs: FloatArray
    """Costs of the evaluations, shape (n,); may be non-finite."""
    length: float
    """Planned length of the trial in steps."""

    @cached_property
    def best(self) -> FloatArray:
        """Lowest cost up to each evaluation, shape (n,)."""
        return reach.best_so_far(self.costs)

    @cached_property
    def final(self) -> float:
        """Lowest cost over all evaluations."""
        return float(self.best[-1])

    @cached_property
    def median_recent_costs(self) -> FloatArray:
        """Median of the last three costs up to each evaluation, shape (n,)."""
        return reach.running_medians(self.costs)

    @cached_property
    def extrapolated_gain(self) -> FloatArray:
        """Forecast at each evaluation, shape (n,): the decrease of cost until the end of training if the cost keeps falling at
        its steepest recent rate."""
        count = len(self.steps)
        return np.array([reach.extrapolated_gain(self.steps, self.median_recent_costs, self.length, at) for at in range(count)])


@dataclass(frozen=True, slots=True)
class ImprovementBounds:
    """The decrease of cost that a trial needs after an evaluation to become the best, and two bounds on the decrease that it
    can reach."""

    step: int
    best: float
    """Lowest cost of the trial so far."""
    incumbent: float
    """Lowest cost of the completed siblings (trials with the same length and schedule)."""
    largest_later_decrease: float
    """Largest decrease of cost of any completed sibling after this step. The decrease is measured from this trial's cost at
    this step or, if lower, from the sibling's cost at this step."""
    extrapolated_decrease: float
    """Decrease of cost until the end of training if this trial's cost keeps falling at its steepest recent rate."""

    @property
    def needed_gain(self) -> float:
        """Decrease of cost that the trial needs to reach the best completed sibling."""
        return self.best - self.incumbent


def margin(siblings: int, exceedance: float) -> float:
    """Return a factor m >= 1: a trial's value exceeds m times the siblings' largest value with a probability of at most
    `exceedance`.

    If values are exchangeable, a new value exceeds the largest of n earlier ones with probability 1 / (n + 1). The new value
    exceeds m times the largest value with a probability of at most 1 / (m (n + 1)), unless the distribution's tail is heavier
    than 1 / x. So the factor m must be larger if there are fewer siblings.
    """
    return max(1.0, 1 / (exceedance * (siblings + 1)))


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds for stopping running trials. The defaults were chosen by replaying studies (see
    `benchmarks/quality/guard.py`)."""

    siblings: int = 4
    """Minimum number of siblings (completed trials with the same length and schedule) to judge a trial."""
    evaluations: int = 10
    """Minimum number of evaluations over a complete training run."""
    successive_evaluations: int = 3
    """Number of successive evaluations at which both bounds on the decrease of cost must rule the trial out."""
    exceedance: float = 0.1
    """Accepted probability that a ruled-out trial would still improve by more than `margin` times the largest later improvement
    of its siblings."""
    stuck_exceedance: float = 0.01
    """Accepted probability that a trial is wrongly called stuck although it is learning, because its objective leaves its first
    value late."""

    def margin(self, siblings: int) -> float:
        """Return the factor by which to multiply the largest later improvement of this number of siblings."""
        return margin(siblings, self.exceedance)

    def bounds_if_doomed(self, trial: TrialProgress, at: int, siblings: Sequence[TrialProgress]) -> ImprovementBounds | None:
        """Return the bounds at evaluation `at` (0-based) if they rule out, at this and the preceding evaluations, that the
        trial becomes the best; else None.

        A trial that is ahead of half of its siblings at the same step is never ruled out, because few siblings show how a
        leading trial continues. siblings: completed trials.
        """
        first = at - self.successive_evaluations + 1
        if first < 0 or at + 1 < reach.MIN_SLOPE_POINTS or len(siblings) < self.siblings:
            return None
        incumbent = min(s.final for s in siblings)
        evaluations = range(at, first - 1, -1)
        if any(not float(trial.best[k]) - incumbent > trial.extrapolated_gain[k] for k in evaluations):
            return None
        completed = [(s.steps, s.best) for s in siblings]
        finals, margin = np.array([s.final for s in siblings]), self.margin(len(siblings))
        bounds = None
        for k in evaluations:
            best, own = float(trial.best[k]), float(trial.extrapolated_gain[k])
            costs = reach.lowest_costs_until(float(trial.steps[k]), completed)
            later = reach.largest_later_gain(best, costs, finals)
            if not best - incumbent > margin * later or best <= np.median(costs):
                return None
            bounds = bounds or ImprovementBounds(int(trial.steps[k]), best, incumbent, later, own)
        return bounds

    def has_enough_evaluations(self, siblings: Sequence[TrialProgress]) -> bool:
        """Return whether most siblings (comparable completed trials) have the required number of evaluations."""
        return bool(np.median([len(s.steps) for s in siblings]) >= self.evaluations)
