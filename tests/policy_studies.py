"""Studies of policies that are trained by rewards, with curves under the names that TRL logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from studies import make_study

from advisor.model.space import FloatArray
from advisor.model.spec import Parameter
from advisor.model.study import Study

POINTS = 100
RATES = {"learning_rate": Parameter(low=1e-6, high=1e-4, scale="log")}


def learning(rng: np.random.Generator, start: float = 0.3, end: float = 0.8, points: int = POINTS) -> FloatArray:
    """Return a reward that rises from `start` to `end` and levels off, with noise."""
    at = np.linspace(0, 1, points)
    return np.asarray(start + (end - start) * (1 - np.exp(-3 * at)) / (1 - np.exp(-3)) + 0.03 * rng.normal(size=points))


def policy_study(
    rewards: Sequence[FloatArray], params: Mapping[str, Any] | None = None, **curves: Sequence[FloatArray | None]
) -> Study:
    """Return a study with one trial for each reward. curves: further curves by TRL's names, with "__" for a slash."""
    each = [{"learning_rate": 1e-6 * 10**i, **(params or {})} for i in range(len(rewards))]
    logged = {"train/" + name.replace("__", "/"): list(values) for name, values in curves.items()}
    return make_study(
        each,
        {"eval_reward": [r[9::10] for r in rewards], "train/reward": list(rewards), **logged},
        objective="eval_reward",
        direction="maximize",
        space=RATES,
        steps={
            "eval_reward": [np.arange(10, len(r) + 1, 10) for r in rewards],
            "train/reward": [np.arange(1, len(r) + 1) for r in rewards],
            **{m: [np.arange(1, POINTS + 1)] * len(rewards) for m in logged},
        },
    )
