"""Converts the objective of all trials to costs, and computes the smallest difference between two values that is not chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from advisor.contract import metric_direction
from advisor.model.first_rewards import cost_before_training, have_same_quantity
from advisor.model.space import FloatArray
from advisor.model.study import Curve, CurveBlocks
from advisor.tracking.study.metric_names import find_policy_metrics

_MIN_DIFFERING_EXAMPLES = 5
"""Minimum difference between two accuracies in validation examples. If two equally good models disagree on five examples, the
probability that a given one of them is right on all five is 1/32 (sign test)."""
_MIN_ACCURACY_DIFFERENCE = 1e-5
"""Minimum relative difference between two accuracies; smaller ones are rounding errors of 32-bit floats."""
_MAX_ACCURACY_ROUNDING = 0.1
"""Maximum distance, in examples, of a rounded accuracy from a whole number of correct examples."""
_MAX_DETECTABLE_DIFFERENCE = 0.5
"""Maximum detectable difference, as a share of the accuracies' range, without a number of examples. Our choice."""
_MAX_BEST_SO_FAR_P_VALUE = 0.01
"""Maximum p-value at which a metric counts as the best value so far."""


@dataclass(frozen=True)
class ObjectiveCosts:
    """The objective of each trial, converted to a cost (lower is better)."""

    metric: str
    curves: Sequence[Curve]
    """Cost curve of each trial, which may have NaN or infinite values."""
    cost_sign: int
    """-1 if the objective is maximised, else 1."""
    rewards: Sequence[Curve] = ()
    """Finite training rewards of each trial if the objective of a policy is a reward as well; else empty."""

    def start_cost(self, trial: int) -> float:
        """Return the cost of the untrained model. The trial needs a finite cost."""
        return cost_before_training(self.curves[trial].finite, self.rewards[trial] if self.rewards else None)

    def objective_text(self, cost: float) -> str:
        return f"{self.cost_sign * cost + 0.0:.3g}"

    @cached_property
    def cost_range(self) -> float:
        """Range of the finite costs of all trials, or NaN."""
        extremes = [v for c in self.curves for v in (c.finite.values.min(initial=np.inf), c.finite.values.max(initial=-np.inf))]
        finite_costs = [v for v in extremes if math.isfinite(v)]
        return max(finite_costs) - min(finite_costs) if finite_costs else math.nan


def objective_costs_of(blocks: CurveBlocks, objective: str, *, minimize: bool, trials: int) -> ObjectiveCosts:
    curves = [blocks[objective].curve(i) for i in range(trials)]
    if minimize:
        return ObjectiveCosts(objective, curves, 1)
    reward = find_policy_metrics(blocks).get("policy_reward")
    is_same_quantity = reward is not None and have_same_quantity(reward, objective)
    rewards = [blocks[reward].curve(i).finite for i in range(trials)] if reward is not None and is_same_quantity else []
    return ObjectiveCosts(objective, [-c for c in curves], -1, rewards)


def min_detectable_difference(costs: ObjectiveCosts, examples: float) -> float:
    """Return the minimum detectable difference of two accuracies with this many validation examples; 0 for other objectives. If
    the number is unknown, the smallest logged difference is one example if all accuracies are multiples of it. A few accuracies
    can be multiples by chance, so the result is limited to a share of the range."""
    if math.isfinite(examples) or "accuracy" not in metric_direction.quantity_words(costs.metric):
        return min_known_difference(costs, examples)
    values = np.unique(np.concatenate([c.finite.values for c in costs.curves] or [np.empty(0)]))
    gaps = np.diff(values)
    gaps = gaps[gaps > _MIN_ACCURACY_DIFFERENCE * np.abs(values).max(initial=0.0)]
    if not len(gaps):
        return 0.0
    example_counts = values * round(_full_accuracy(values) / gaps.min()) / _full_accuracy(values)
    if np.abs(example_counts - np.round(example_counts)).max() > _MAX_ACCURACY_ROUNDING:
        return 0.0
    return min(_MIN_DIFFERING_EXAMPLES * float(gaps.min()), _MAX_DETECTABLE_DIFFERENCE * costs.cost_range)


def min_known_difference(costs: ObjectiveCosts, examples: float) -> float:
    """Return the minimum detectable difference of accuracies; 0 for other objectives, or if `examples` is unknown."""
    if "accuracy" not in metric_direction.quantity_words(costs.metric):
        return 0.0
    values = np.concatenate([c.finite.values for c in costs.curves] or [np.empty(0)])
    return _MIN_DIFFERING_EXAMPLES / examples * _full_accuracy(values)


def _full_accuracy(accuracies: FloatArray) -> float:
    """Return the accuracy of a perfect model."""
    return 1.0 if float(np.abs(accuracies).max(initial=0.0)) <= 1 + 1e-6 else 100.0


def is_best_so_far(costs: ObjectiveCosts) -> bool:
    """Return whether the objective is the best value so far: no evaluation is worse than an earlier one, and values often
    repeat before they jump. By chance, each repeated value could as well have been worse (sign test). Repeats before the
    smallest improvement do not count, because rounding makes the values of a smooth curve repeat as well."""
    changes = [np.diff(c.finite.values) for c in costs.curves if len(c.finite) > 1]
    all_changes = np.concatenate(changes) if changes else np.empty(0)
    if not (all_changes < 0).any() or (all_changes > 0).any():
        return False
    unit = float(-all_changes[all_changes < 0].max())
    jump_count = sum(int(((d[:-1] == 0) & (d[1:] < -1.5 * unit)).sum()) for d in changes)
    return bool(0.5**jump_count <= _MAX_BEST_SO_FAR_P_VALUE)
