"""Reads the reward of a policy before its training, which may be worse than its first evaluation."""

from __future__ import annotations

from advisor.contract.metric_direction import quantity_words
from advisor.model.space import FloatArray
from advisor.model.study import Curve

_INITIAL_SHARE = 0.05
"""Share of the training rewards that counts as initial: a collapse may take only a few more steps. Our choice."""


def initial_rewards(reward: FloatArray) -> FloatArray:
    return reward[: max(int(_INITIAL_SHARE * len(reward)), 1)]


def have_same_quantity(reward: str | None, objective: str) -> bool:
    """Return whether the metric of the training reward and the objective are named after the same quantity."""
    return reward is not None and quantity_words(reward) == quantity_words(objective)


def cost_before_training(costs: Curve, reward: Curve | None) -> float:
    """Return the first cost, or the cost of the initial training reward if that reward was logged before the first cost and is
    worse. costs: finite costs, at least one. reward: finite training rewards that measure the same quantity as the objective,
    if known."""
    first_cost = float(costs.values[0])
    if reward is None or not len(reward) or reward.steps[0] >= costs.steps[0]:
        return first_cost
    return max(first_cost, -float(initial_rewards(reward.values).mean()))
