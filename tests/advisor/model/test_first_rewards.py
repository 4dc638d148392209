from __future__ import annotations

import numpy as np
import pytest

from advisor.model.first_rewards import cost_before_training, have_same_quantity
from advisor.model.study import Curve


def _curve(first: int, *values: float) -> Curve:
    return Curve(first + np.arange(len(values)), np.array(values), np.full(len(values), np.nan))


@pytest.mark.parametrize(
    ("reward", "cost"),
    [(None, -0.5), (_curve(0), -0.5), (_curve(0, 0.3, 0.9), -0.3), (_curve(0, 0.6, 0.9), -0.5), (_curve(6, 0.3, 0.9), -0.5)],
    ids=["no reward", "no rewards", "worse", "better", "after the first evaluation"],
)
def test_the_cost_before_training_may_precede_the_first_evaluation(reward: Curve | None, cost: float) -> None:
    assert cost_before_training(_curve(6, -0.5, -0.8), reward) == cost


def test_a_reward_is_compared_with_an_objective_of_the_same_quantity_only() -> None:
    assert have_same_quantity("train/reward", "eval_reward")
    assert not have_same_quantity("train/reward", "eval/accuracy")
    assert not have_same_quantity(None, "eval_reward")
