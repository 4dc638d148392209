"""Tasks that are real trainings of small networks on the data of the recorded studies; most have a wrong starting space.

The faults of the starting spaces are common ones: learning rates from a different project, a range of ten decades, a range whose
upper half does not train, too few steps, a missing warmup, a regulariser that is too strong or missing. A search is judged by the
mean cost of `JUDGED_TRAININGS` further trainings of its chosen setting, with seeds that no search has used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from recordings.training import Training

from advisor.model.space import HyperparameterValue
from advisor.model.spec import Objective, Parameter, StudySpec
from loop.results import cached_outcome
from loop.task import FIRST_JUDGED_SEED, Outcome, Setting, Space

JUDGED_TRAININGS = 4
"""Number of trainings by whose mean cost a chosen setting is judged."""
FAILED_COST = {"val/loss": 10.0, "val/error": 1.0}
"""Cost that is assigned to a training without a result, by objective."""
HYPERPARAMETERS = frozenset(f.name for f in fields(Training))
"""Names of a training's hyperparameters."""
VERSION = 1
"""Version of the code that trains. If it is increased, all stored trainings are discarded."""


@dataclass(frozen=True)
class TrainingTask:
    name: str
    fault: str
    training: Training
    space: Mapping[str, Parameter]
    trials: int = 30
    floor: float = math.nan
    results: Path | None = field(default=None, repr=False)
    """Folder in which trainings are stored; None: they are not stored."""

    @property
    def kind(self) -> Space:
        return "too wide" if self.name.endswith("too wide") else "wrong" if self.fault else "right"

    @cached_property
    def start(self) -> StudySpec:
        return StudySpec(
            study=self.name,
            objective=Objective(metric=self.training.objective, direction="minimize"),
            parameters=self.space,
            trials=self.trials,
            max_train_steps=self.training.max_train_steps,
            evaluate_every=self.training.evaluate_every,
        )

    def run(self, setting: Setting, seed: int) -> Outcome:
        """Run the training, or return the stored outcome of the same training."""
        from loop.train import train

        training = self._start_training(setting)
        key = [VERSION, asdict(training), dict(setting.params), seed]
        return cached_outcome(self.results, key, lambda: train(training, setting.params, seed))

    def _start_training(self, setting: Setting) -> Training:
        known = {n: v for n, v in setting.params.items() if n in HYPERPARAMETERS}
        changes: dict[str, Any] = {**self._schedule(setting.schedule), **known}
        every = max(round(self.training.evaluate_every * setting.steps / self.training.max_train_steps), 1)
        return replace(self.training, **changes, max_train_steps=setting.steps, evaluate_every=every)

    @staticmethod
    def _schedule(schedule: Mapping[str, HyperparameterValue]) -> dict[str, HyperparameterValue]:
        """Return the schedule's kind without the prefix "warmup+", and its warmup steps, which state the same fact."""
        names = {"kind": "schedule", "warmup_steps": "warmup_steps"}
        return {names[k]: str(v).removeprefix("warmup+") if k == "kind" else v for k, v in schedule.items() if k in names}

    def judge(self, setting: Setting, seed: int) -> tuple[float, float]:
        """Return the mean and the between-seed standard deviation of the setting's cost, over seeds that no search has used."""
        costs = [self.run(setting, FIRST_JUDGED_SEED + JUDGED_TRAININGS * seed + i).cost for i in range(JUDGED_TRAININGS)]
        costs = [cost if np.isfinite(cost) else FAILED_COST[self.training.objective] for cost in costs]
        return float(np.mean(costs)), float(np.std(costs, ddof=1))

    def supported_study(self, spec: StudySpec) -> StudySpec:
        """Return the study without hyperparameters that neither the training nor a formula uses."""
        formulas = " ".join(p.formula or "" for p in spec.parameters.values())
        parameters = {n: p for n, p in spec.parameters.items() if n in HYPERPARAMETERS or n in formulas}
        return spec.model_copy(update={"parameters": parameters})


def _log(low: float, high: float) -> Parameter:
    return Parameter(type="float", low=low, high=high, scale="log")


def _linear(low: float, high: float) -> Parameter:
    return Parameter(type="float", low=low, high=high)


MLP = Training(depth=1, norm="none", n_valid=500, max_train_steps=120, evaluate_every=10, objective="val/loss")
CNN = replace(MLP, task="digits-cnn", max_train_steps=96, evaluate_every=8)
WALK = Training(
    task="walk", optimizer="adam", norm="pre", width=32, batch_size=32, n_train=1600, n_valid=200, objective="val/loss",
    dropout=0.0, max_train_steps=80, evaluate_every=8, learning_rate=3e-3, depth=1, warmup_steps=8,
)  # fmt: skip
POST_NORM = replace(
    MLP, task="digits-residual", norm="post", depth=5, width=32, schedule="constant", warmup_steps=0, weight_decay=0.0
)
FEW = replace(MLP, n_train=128, width=256, depth=2, dropout=0.0, weight_decay=0.0, batch_size=32)
DECAY = {"weight_decay": _log(1e-6, 1e-2)}


def tasks(results: Path | None = None) -> list[TrainingTask]:
    """Return all tasks; their trainings are stored in the folder `results`."""
    return [replace(task, results=results) for task in _tasks()]


def _tasks() -> list[TrainingTask]:
    return [
        TrainingTask(
            "mlp, rates too low", "the best learning rate is a hundred times the highest", MLP,
            {"learning_rate": _log(1e-5, 1e-3), "momentum": _linear(0.5, 0.95), **DECAY},
        ),
        TrainingTask(
            "cnn, half of it unstable", "the upper half of the learning rates does not train, and the best are below",
            CNN, {"learning_rate": _log(0.3, 30), "momentum": _linear(0.5, 0.95), **DECAY},
        ),
        TrainingTask(
            "mlp, too wide", "ten decades of learning rates, most of them useless, and equally wide other ranges",
            MLP, {"learning_rate": _log(1e-7, 1e3), "momentum": _linear(0.0, 0.999), "weight_decay": _log(1e-9, 10)},
        ),
        TrainingTask(
            "mlp, dropout too strong", "the best dropout is a third of the weakest", MLP,
            {"learning_rate": _log(0.01, 1), "dropout": _linear(0.5, 0.9), **DECAY},
        ),
        TrainingTask(
            "transformer, rates too low", "the best learning rate is some thirty times the highest", WALK,
            {"learning_rate": _log(1e-6, 2e-4), "beta1": _linear(0.8, 0.98), "weight_decay": _log(1e-4, 0.1)},
        ),
        TrainingTask(
            "post-norm network, most of it unstable",
            "normalisation after the residual branches, no warmup, and mostly learning rates that do not train",
            POST_NORM, {"learning_rate": _log(0.05, 10), "momentum": _linear(0.5, 0.95)},
        ),
        TrainingTask(
            "mlp on few examples, no regulariser",
            "the network learns its 128 examples by heart, and nothing that is searched would stop it", FEW,
            {"learning_rate": _log(0.01, 1), "momentum": _linear(0.5, 0.95)},
        ),
        TrainingTask(
            "cnn, too few steps", "a quarter of the steps that it takes",
            replace(CNN, max_train_steps=24, evaluate_every=2),
            {"learning_rate": _log(0.01, 1), "momentum": _linear(0.5, 0.95), **DECAY},
        ),
        TrainingTask("mlp, right", "", MLP, {"learning_rate": _log(0.01, 3), "momentum": _linear(0.5, 0.95), **DECAY}),
        TrainingTask(
            "cnn, right", "", CNN, {"learning_rate": _log(0.005, 1.5), "momentum": _linear(0.5, 0.95), **DECAY},
        ),
    ]  # fmt: skip
