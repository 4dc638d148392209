"""Studies of random trials, and questions about a report, which several groups of situations use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from advisor.model.space import FloatArray, IntArray
from worlds.world import Metric, Outcome, Random, Store


def evaluation_steps(rng: Random) -> IntArray:
    """Return the steps at which one study evaluates."""
    every = int(rng.choice([1, 1, 50, 100, 500]))
    return np.arange(1 if every == 1 else every, every * int(rng.integers(8, 30)) + 1, every)


def quality_of(rng: Random, setting: Mapping[str, Any]) -> float:
    """Return the final accuracy of a setting, with noise between seeds; the best learning rate is near 0.01."""
    rate = float(setting.get("lr", setting.get("learning_rate", 0.01)))
    return 0.94 - 0.03 * (math.log10(rate) + 2) ** 2 + rng.normal(0, 0.004)


def accuracy_curve(rng: Random, steps: IntArray, final: float, start: float = 0.3) -> FloatArray:
    """Return an accuracy curve that rises to its final value with a little noise, so that its best value is rarely its last."""
    progress = steps / steps[-1]
    noise = rng.normal(0, 0.003, len(steps))
    curve: FloatArray = np.clip(start + (final - start) * (1 - np.exp(-4 * progress)) / (1 - math.exp(-4)) + noise, 0.0, 0.999)
    return curve


def accuracy_metrics(rng: Random, steps: IntArray, accuracy: FloatArray, name: str) -> dict[str, Metric]:
    loss = 2.2 * (1 - accuracy) + rng.normal(0, 0.005, len(steps))
    return {name: (steps, accuracy), "train_loss": (steps, loss)}


def sample_settings(rng: Random, n: int) -> list[dict[str, Any]]:
    """Return `n` random settings of three hyperparameters."""
    return [
        {
            "lr": float(10 ** rng.uniform(-3.5, -0.5)),
            "dropout": float(rng.uniform(0, 0.5)),
            "weight_decay": float(10 ** rng.uniform(-6, -2)),
        }
        for _ in range(n)
    ]


def log_study(
    rng: Random, settings: Sequence[Mapping[str, Any]], store: Store | None = None, metric: str = "val_accuracy", **how: Any
) -> Store:
    """Log one run for each setting."""
    store = store or Store()
    steps = evaluation_steps(rng)
    for setting in settings:
        accuracy = accuracy_curve(rng, steps, quality_of(rng, setting))
        store.log(setting, accuracy_metrics(rng, steps, accuracy, metric), **how)
    return store


def trial_count(rng: Random) -> int:
    return int(rng.integers(12, 40))


def searched_in(outcome: Outcome) -> set[str]:
    return set(outcome.report.spec.searched) if outcome.report is not None else set()


def next_searched(outcome: Outcome) -> set[str]:
    """Return the hyperparameters that the analysis or any next study searches."""
    nexts = [n.spec.searched for n in outcome.report.next_studies] if outcome.report is not None else []
    return searched_in(outcome).union(*nexts)


def reports(outcome: Outcome, *words: str) -> bool:
    return all(word in outcome.text for word in words)
