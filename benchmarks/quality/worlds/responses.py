"""Helpers for studies whose results follow a known response to their hyperparameters. Several groups of situations use these
helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from advisor.model.space import FloatArray
from advisor.model.spec import Objective, Parameter, StudySpec
from worlds.world import Random, SimulatedStudy, Store

COMPARED: Mapping[str, Sequence[Any]] = {
    "activation": ("relu", "gelu", "swish", "tanh", "elu", "mish"),
    "optimizer": ("adamw", "sgd", "lion", "adafactor", "sophia", "muon"),
    "norm": ("layer", "rms", "batch", "group", "instance", "weight"),
    "model.pooling": ("mean", "max", "cls", "attention", "sum", "last"),
}
RATES = ("lr", "learning_rate", "optim.lr")
OTHERS: Mapping[str, Parameter] = {
    "weight_decay": Parameter(low=1e-6, high=1e-2, scale="log"),
    "dropout": Parameter(low=0.0, high=0.5),
    "label_smoothing": Parameter(low=0.0, high=0.3),
    "warmup_fraction": Parameter(low=0.0, high=0.2),
    "beta2": Parameter(low=0.9, high=0.999, scale="reverse-log"),
    "grad_clip": Parameter(low=0.1, high=10.0, scale="log"),
    "eps": Parameter(low=1e-10, high=1e-6, scale="log"),
}
STEPS = 2_000


def curve(random: Random, cost: float, points: int = 10) -> FloatArray:
    """Return a falling curve that ends at `cost`."""
    at = np.arange(1, points + 1) / points
    speed = random.uniform(4, 7)
    return np.asarray(cost + 1.5 * (np.exp(-speed * at) - np.exp(-speed)), dtype=np.float64)


def store_of(
    random: Random, params: Sequence[Mapping[str, Any]], costs: FloatArray, flat_costs: Sequence[float] = ()
) -> tuple[Store, str, str]:
    """Return a store with these trials, and the name and direction of the objective.

    A cost of NaN means that the trial diverged. A curve is flat if its final cost is in `flat_costs`.
    """
    store = Store()
    accuracy = random.random() < 0.5
    objective = str(random.choice(("val_acc", "eval/accuracy") if accuracy else ("val_loss", "valid/loss")))
    at = (np.arange(1, 11) * STEPS // 10).tolist()
    for chosen, cost in zip(params, costs.tolist(), strict=True):
        if not np.isfinite(cost):
            broken = [np.nan] * 8
            store.log(chosen, {objective: (at, broken + broken[:2]), "train_loss": (at, [2.0, 9.0, *broken])})
            continue
        values = np.full(10, cost) + 1e-4 * random.standard_normal(10) if cost in flat_costs else curve(random, cost)
        loss = values + 0.02 * random.standard_normal(10)
        store.log(chosen, {objective: (at, 0.95 * np.exp(-values) if accuracy else values), "train_loss": (at, loss)})
    return store, objective, "maximize" if accuracy else "minimize"


def make_study(
    random: Random,
    params: Sequence[Mapping[str, Any]],
    costs: FloatArray,
    truth: Mapping[str, Any],
    space: Mapping[str, Parameter] | None = None,
    flat_costs: Sequence[float] = (),
) -> SimulatedStudy:
    """Return the study, with a study file if `space` is passed."""
    store, objective, direction = store_of(random, params, costs, flat_costs)
    arguments: dict[str, Any] = {"objective": objective, "direction": direction}
    if space is not None:
        goal = Objective(metric=objective, direction="maximize" if direction == "maximize" else "minimize")
        arguments = {"spec": StudySpec(study="experiment", objective=goal, parameters=space)}
    return SimulatedStudy(store.experiment(), arguments, truth)


def response(random: Random, at: FloatArray, optimum: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the costs (n,) at positions (n, d): a bowl, a valley with straighter walls, or a bowl with a cliff on the first
    axis."""
    away = at - optimum
    kind = random.choice(("bowl", "valley", "cliff"))
    costs = (weights * (np.abs(away) ** (1.5 if kind == "valley" else 2.0))).sum(1)
    return np.asarray(costs + (3 * np.clip(away[:, 0] - 0.15, 0, None) ** 1.5 if kind == "cliff" else 0), dtype=np.float64)


def nuisances(random: Random, count: int) -> dict[str, Parameter]:
    """Return `count` hyperparameters with their ranges; the first is the learning rate."""
    low = float(10 ** random.uniform(-5, -3))
    rate = Parameter(low=low, high=low * float(10 ** random.uniform(1.5, 3)), scale="log")
    names = random.permutation(list(OTHERS))[: count - 1].tolist()
    return {str(random.choice(RATES)): rate, **{n: OTHERS[n] for n in names}}
