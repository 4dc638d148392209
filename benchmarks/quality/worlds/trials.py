"""Helpers for trials of a learning rate and other hyperparameters, whose losses the situation chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from advisor.model.space import FloatArray
from worlds.world import Metric, Random, SimulatedStudy, Store

RATES = ("lr", "learning_rate", "optimizer.lr", "optim/learning_rate", "base_lr", "peak_learning_rate")
OTHERS: Mapping[str, tuple[float, float, bool]] = {
    "weight_decay": (1e-6, 1e-2, True),
    "dropout": (0.0, 0.5, False),
    "label_smoothing": (0.0, 0.3, False),
    "warmup_fraction": (0.0, 0.2, False),
    "momentum": (0.5, 0.99, False),
    "grad_clip": (0.1, 10.0, True),
}
"""(low end, high end, whether the scale is logarithmic) for each hyperparameter other than the learning rate."""


def settings(random: Random, count: int, axes: int) -> tuple[list[dict[str, Any]], FloatArray]:
    """Return random settings of a learning rate and `axes` - 1 other hyperparameters, and their positions (count, axes)."""
    rate = str(random.choice(RATES))
    chosen = [str(n) for n in random.choice(list(OTHERS), axes - 1, replace=False)]
    at = random.random((count, axes))
    params = []
    for row in at:
        values = {rate: float(1e-4 * 1e3 ** row[0])}
        for name, u in zip(chosen, row[1:], strict=True):
            low, high, log = OTHERS[name]
            values[name] = float(low * (high / low) ** u if log else low + (high - low) * u)
        params.append(values)
    return params, at


def curve(random: Random, cost: float, points: int) -> FloatArray:
    """Return a falling curve that ends at `cost` and is flat in its second half."""
    at = np.arange(1, points + 1) / points
    return np.asarray(cost + 1.5 * np.exp(-random.uniform(12, 16) * at), dtype=np.float64)


def store_of_trials(
    random: Random, params: list[dict[str, Any]], costs: FloatArray, noise: float = 1e-3, steps: int | None = None
) -> Store:
    """Return a store of these trials; noise: standard deviation of the losses between evaluations. steps: length of training; None:
    random."""
    store, steps = Store(), int(random.choice([500, 2_000, 20_000])) if steps is None else steps
    at = (np.arange(1, 13) * steps // 12).tolist()
    for chosen, cost in zip(params, costs.tolist(), strict=True):
        values = curve(random, cost, 12)
        metrics: dict[str, Metric] = {
            "val_loss": (at, values + noise * random.standard_normal(12)),
            "train_loss": (at, values - 0.02 + noise * random.standard_normal(12)),
        }
        store.log({**chosen, "batch_size": 64}, metrics)
    return store


def loss_study(store: Store) -> SimulatedStudy:
    """Return the study in a store whose objective is a loss."""
    return SimulatedStudy(store.experiment(), {"objective": "val_loss", "direction": "minimize"})
