"""Decides when the guard may say that a running trial cannot become the best of its study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from advisor.model.space import FloatArray, IntArray
from advisor.stats import reach


@dataclass(frozen=True, eq=False)
class Progress:
    """The evaluations of one trial as costs (lower is better), sorted by step."""

    steps: IntArray | FloatArray
    """Shape (n,), strictly increasing."""
    costs: FloatArray
    """Shape (n,); may be non-finite."""
    length: float
    """Planned length of the training in steps."""

    @cached_property
    def best(self) -> FloatArray:
        """Lowest cost up to each evaluation, shape (n,)."""
        return reach.best_so_far(self.costs)

    @cached_property
    def final(self) -> float:
        """Lowest cost of all evaluations."""
        return float(self.best[-1])

    @cached_property
    def level(self) -> FloatArray:
        """Median of the last three costs at each evaluation, shape (n,)."""
        return reach.levels(self.costs)

    @cached_property
    def extrapolated_gain(self) -> FloatArray:
        """Gain until the end of training at the steepest recent rate, forecast at each evaluation, shape (n,)."""
        count = len(self.steps)
        return np.array([reach.extrapolated_gain(self.steps, self.level, self.length, at) for at in range(count)])


@dataclass(frozen=True, slots=True)
class Bounds:
    """The gain that a trial needs to become the best, and two bounds of the gain it can reach; all are costs, at one evaluation."""

    step: int
    best: float
    """The trial's lowest cost so far."""
    incumbent: float
    """Lowest cost of the completed siblings. The incumbent's later gain is among the gains that bound the trial's gain."""
    later: float
    """Largest gain of a completed sibling after this step, from this trial's cost or from the sibling's cost if that was lower."""
    extrapolated: float
    """Gain until the end of training at this trial's steepest recent rate."""

    @property
    def needed(self) -> float:
        """Gain that the trial needs to reach the incumbent."""
        return self.best - self.incumbent


def margin(siblings: int, exceedance: float) -> float:
    """Return the factor m >= 1 such that a trial exceeds m times the siblings' largest value with at most probability `exceedance`.

    If values are exchangeable, one more value exceeds the largest of n others with probability 1 / (n + 1), and m times the largest
    with at most 1 / (m (n + 1)), unless the values' tail is heavier than 1 / x. So the fewer siblings, the larger the factor.
    """
    return max(1.0, 1 / (exceedance * (siblings + 1)))


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds of the guard. The defaults were chosen on replayed studies, see `benchmarks/quality/guard.py`."""

    siblings: int = 4
    """Minimum number of completed trials with the same length and schedule."""
    evaluations: int = 10
    """Minimum number of evaluations in a whole training."""
    in_a_row: int = 3
    """Number of successive evaluations at which both bounds must show that the trial cannot become the best."""
    exceedance: float = 0.1
    """Accepted probability that a trial still gains more than `margin` times the largest later gain of its siblings."""
    stuck_exceedance: float = 0.01
    """Accepted probability that a trial that does learn is called stuck, because it leaves its first value late."""

    def margin(self, siblings: int) -> float:
        """Return the factor on the largest later gain of this number of siblings."""
        return margin(siblings, self.exceedance)

    def doom(self, trial: Progress, at: int, siblings: Sequence[Progress]) -> Bounds | None:
        """Return the bounds at evaluation `at` (0-based) if they rule the trial out at this evaluation and at the ones just before.

        A trial that is ahead of half of its siblings at the same step is never ruled out: few siblings show how a leading trial
        continues. siblings: completed trials.
        """
        first = at - self.in_a_row + 1
        if first < 0 or at + 1 < reach.MIN_POINTS or len(siblings) < self.siblings:
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
            costs = reach.lowest_costs_by(float(trial.steps[k]), completed)
            later = reach.later_gain(best, costs, finals)
            if not best - incumbent > margin * later or best <= np.median(costs):
                return None
            bounds = bounds or Bounds(int(trial.steps[k]), best, incumbent, later, own)
        return bounds

    def enough_evaluations(self, siblings: Sequence[Progress]) -> bool:
        """Return whether most siblings have enough evaluations."""
        return bool(np.median([len(s.steps) for s in siblings]) >= self.evaluations)
