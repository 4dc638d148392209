"""Generators of studies whose trials may differ in length: pruned, stopped early, interrupted, crashed, or healthy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna

from advisor.model.space import FloatArray
from advisor.tracking.runs import RunStatus
from worlds.world import Metric, Random, SimulatedStudy, Store

optuna.logging.set_verbosity(optuna.logging.ERROR)


@dataclass
class World:
    """A response surface with learning curves: the validation cost of a trial falls from 1 towards a floor that depends on its
    setting."""

    random: Random
    steps: int = 30
    """Number of evaluations in a complete trial."""
    best_lr: float = field(init=False)
    noise: float = field(init=False)
    lr: str = field(init=False)
    metric: str = field(init=False)
    maximize: bool = field(init=False)
    early_lead: float = 0.0
    """Exponent of the learning rate by which higher learning rates progress faster early in training; 0 for no advantage."""
    dropout_weight: float = 0.01
    """Cost that the worst dropout rate adds at full length."""

    def __post_init__(self) -> None:
        self.best_lr = 10 ** self.random.uniform(-3.3, -2.3)
        self.noise = self.random.uniform(0.002, 0.008)
        self.lr = str(self.random.choice(["lr", "learning_rate", "optimizer.lr"]))
        self.maximize = bool(self.random.integers(2))
        names = ["val_accuracy", "val/acc", "valid_accuracy"] if self.maximize else ["val_loss", "val/error", "valid_loss"]
        self.metric = str(self.random.choice(names))

    def floor(self, lr: float, dropout: float, decay: float) -> float:
        """Return the final cost of a setting at full length, which is at least 0.1."""
        away = math.log10(lr / self.best_lr)
        by_dropout = self.dropout_weight * ((dropout - 0.25) / 0.25) ** 2
        return 0.1 + 0.05 * away**2 + by_dropout + 0.002 * (math.log10(decay) + 4) ** 2

    def curve(self, lr: float, dropout: float, decay: float) -> FloatArray:
        """Return the cost of a setting at each evaluation."""
        time = np.arange(1, self.steps + 1) / self.steps
        pace = 4.0 * (lr / self.best_lr) ** self.early_lead
        floor = self.floor(lr, dropout, decay)
        made: FloatArray = floor + (0.9 - floor) * np.exp(-pace * time) + self.random.normal(0, self.noise, self.steps)
        return made

    def values(self, costs: FloatArray) -> FloatArray:
        """Convert costs to values of the objective."""
        return 1 - costs if self.maximize else costs

    def suggest(self, trial: optuna.Trial) -> tuple[float, float, float]:
        return (
            trial.suggest_float(self.lr, 1e-5, 1e-1, log=True),
            trial.suggest_float("dropout", 0.0, 0.5),
            trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
        )

    def draw(self) -> tuple[float, float, float]:
        """Return the hyperparameters of a random setting."""
        random = self.random
        return 10 ** random.uniform(-5, -1), random.uniform(0, 0.5), 10 ** random.uniform(-6, -2)

    def params(self, settings: tuple[float, float, float]) -> dict[str, float]:
        return dict(zip((self.lr, "dropout", "weight_decay"), settings, strict=True))

    def metrics(self, costs: FloatArray, every: int, *, dense: bool) -> dict[str, Metric]:
        """Return the metrics that a trial logs. every: steps between evaluations; dense: whether to log the training loss too."""
        at = np.arange(1, len(costs) + 1) * every
        made: dict[str, Metric] = {self.metric: (at, self.values(costs))}
        if dense:
            fine = np.arange(1, 10 * len(costs) + 1) * every // 10
            smooth = np.interp(fine, at, costs) * 0.9 + self.random.normal(0, 0.02, len(fine))
            made["train_loss"] = (fine, smooth)
        return made


def _pruned_study(
    random: Random,
    *,
    pruner: str,
    trials: int,
    status: RunStatus,
    early_lead: float = 0.0,
    dropout_weight: float = 0.01,
    budgets: bool = False,
) -> SimulatedStudy:
    """Return a study made with a sampler and a pruner of Optuna. budgets: whether each run logs its maximum length."""
    world = World(random, int(random.choice([27, 30])), early_lead=early_lead, dropout_weight=dropout_weight)
    seed = int(random.integers(1 << 30))
    sampler = optuna.samplers.TPESampler(seed=seed) if random.integers(2) else optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(study_name="pruned", sampler=sampler, pruner=_pruner(pruner, random, world.steps))
    store, every, dense = Store("pruned"), int(random.choice([1, 100])), bool(random.integers(2))
    states = []
    for _ in range(trials):
        trial = study.ask()
        settings = world.suggest(trial)
        costs = world.curve(*settings)
        length = world.steps
        for step, cost in enumerate(costs.tolist(), start=1):
            trial.report(cost, step)
            if trial.should_prune():
                length = step
                break
        cut = length < world.steps
        study.tell(trial, None if cut else float(costs[-1]), optuna.trial.TrialState.PRUNED if cut else None)
        states.append("pruned" if cut else "complete")
        tags = {"advisor.max_train_steps": str(length * every)} if budgets else {}
        metrics = world.metrics(costs[:length], every, dense=dense)
        store.log(world.params(settings), metrics, status=status if cut else "FINISHED", tags=tags)
    truth = {"states": states, "best_lr": world.best_lr, "lr": world.lr, "length": world.steps * every}
    truth["matters"] = ("dropout", world.lr) if dropout_weight > 0.1 else (world.lr,)
    return SimulatedStudy(store.experiment(), direction(world), truth)


def direction(world: World) -> dict[str, str]:
    return {"objective": world.metric, "direction": "maximize" if world.maximize else "minimize"}


def _pruner(name: str, random: Random, steps: int) -> optuna.pruners.BasePruner:
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=int(random.integers(0, 4)))
    if name == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=int(random.choice([1, 3])), reduction_factor=3)
    return optuna.pruners.HyperbandPruner(min_resource=1, max_resource=steps, reduction_factor=3)


def pruned_by(pruner: str, status: RunStatus, **world: Any) -> Callable[[Random], SimulatedStudy]:
    def make(random: Random) -> SimulatedStudy:
        return _pruned_study(random, pruner=pruner, trials=int(random.choice([24, 30, 40])), status=status, **world)

    return make


# --- stopped early, interrupted, crashed -----------------------------------------------------------------------------------------


def _study(world: World, trials: int, cut: Callable[[FloatArray], tuple[int, RunStatus, str]]) -> SimulatedStudy:
    """Return a study of random settings. cut: returns the length, status and true state of a trial, given its costs."""
    store, every, dense = Store("ended"), int(world.random.choice([1, 100])), bool(world.random.integers(2))
    states = []
    for _ in range(trials):
        settings = world.draw()
        costs = world.curve(*settings)
        length, status, state = cut(costs)
        metrics = world.metrics(costs[:length], every, dense=dense)
        if state == "infeasible" and dense:  # a crash can happen between evaluations
            extra = int(world.random.integers(1, 10))
            metrics["train_loss"] = world.metrics(costs[: length + 1], every, dense=True)["train_loss"]
            metrics["train_loss"] = (
                metrics["train_loss"][0][: 10 * length + extra],
                metrics["train_loss"][1][: 10 * length + extra],
            )
        store.log(world.params(settings), metrics, status=status)
        states.append(state)
    truth = {"states": states, "best_lr": world.best_lr, "lr": world.lr, "length": world.steps * every}
    return SimulatedStudy(store.experiment(), direction(world), truth)


def early_stopped(random: Random) -> SimulatedStudy:
    """Return a study whose trials overfit after their best step, and stop after several evaluations without improvement."""
    world = _OverfittingCurve(random, steps=int(random.choice([40, 60, 100])))
    patience, min_delta = int(random.choice([3, 5, 10])), float(random.choice([0.0, 0.0, 1e-3]))

    def cut(costs: FloatArray) -> tuple[int, RunStatus, str]:
        best, wait = math.inf, 0
        for step, cost in enumerate(costs.tolist(), start=1):
            if cost < best - min_delta:
                best, wait = cost, 0
            else:
                wait += 1
            if wait == patience:  # this can also be the planned last step, which callbacks count as an early stop
                return step, "FINISHED", "early_stopped"
        return len(costs), "FINISHED", "complete"

    return _study(world, int(random.choice([12, 20, 30])), cut)


class _OverfittingCurve(World):
    """Trials whose cost is lowest at some step and then rises, or keeps falling slowly."""

    def curve(self, lr: float, dropout: float, decay: float) -> FloatArray:
        time = np.arange(1, self.steps + 1) / self.steps
        best = self.random.uniform(0.1, 1.3)
        floor = self.floor(lr, dropout, decay)
        made: FloatArray = floor + (0.9 - floor) * np.exp(-8 * time) + 0.3 * np.maximum(time - best, 0) ** 1.5
        return made + self.random.normal(0, self.noise / 2, self.steps)


def _unshortened_study(costs: FloatArray) -> tuple[int, RunStatus, str]:
    return len(costs), "FINISHED", "complete"


def crashing_trials(random: Random) -> SimulatedStudy:
    """Return a study in which a few trials crash at a random time, regardless of their results and without an error text."""
    world, share = World(random), random.uniform(0.15, 0.4)

    def cut(costs: FloatArray) -> tuple[int, RunStatus, str]:
        if random.random() < share:
            return int(random.integers(3, len(costs) - 2)), "FAILED", "infeasible"
        return _unshortened_study(costs)

    return _study(world, int(random.choice([16, 24, 30])), cut)


def time_limit(random: Random) -> SimulatedStudy:
    """Return a study in which some trials, regardless of their results, reach a time limit and end normally."""
    world, share = World(random), random.uniform(0.2, 0.6)

    def cut(costs: FloatArray) -> tuple[int, RunStatus, str]:
        short = random.random() < share
        return (int(random.integers(10, len(costs) - 2)) if short else len(costs)), "FINISHED", "complete"

    return _study(world, int(random.choice([16, 24, 30])), cut)


def healthy(random: Random) -> SimulatedStudy:
    return _study(World(random), int(random.choice([12, 20, 30])), _unshortened_study)


def chosen_length(random: Random) -> SimulatedStudy:
    """Return a study in which the number of epochs is a hyperparameter; each trial decays its learning rate until its own end."""
    world, store = World(random), Store("lengths")
    trials = int(random.choice([12, 20, 30]))
    for _ in range(trials):
        settings, world.steps = world.draw(), int(random.integers(5, 50))
        metrics = world.metrics(world.curve(*settings), 1, dense=False)
        store.log({**world.params(settings), "epochs": world.steps}, metrics)
    return SimulatedStudy(store.experiment(), direction(world), {"states": ["complete"] * trials})


def preempted_runs(random: Random) -> SimulatedStudy:
    """Return a study with killed runs, each followed by a second run that continues from a checkpoint, starts again, or counts
    steps from zero."""
    world, store = World(random), Store("preempted")
    trials, every = int(random.choice([8, 16, 24])), int(random.choice([1, 100]))
    way = str(random.choice(["checkpoint", "anew", "from zero"]))
    for number in range(trials):
        settings = world.draw()
        metrics = world.metrics(world.curve(*settings), every, dense=False)
        at, values = (np.asarray(x) for x in metrics[world.metric])
        if number % 3 == 0 or random.random() < 0.3:
            cut = int(random.integers(4, len(at) - 4))
            store.log(world.params(settings), {world.metric: (at[:cut], values[:cut])}, status="KILLED")
            back = int(random.integers(0, 3)) if way == "checkpoint" else 0
            if way == "anew":
                cut, values = 0, world.values(world.curve(*settings))
            rest = at[cut - back :] if way == "checkpoint" else at[: len(at) - cut]
            store.log(world.params(settings), {world.metric: (rest, values[cut - back :])})
        else:
            store.log(world.params(settings), metrics)
    return SimulatedStudy(store.experiment(), direction(world), {"states": ["complete"] * trials})


def repeats_with_seeds(random: Random) -> SimulatedStudy:
    """Return a study in which every setting is run twice in succession, with different seeds that are not logged."""
    world, store = World(random), Store("seeds")
    trials = int(random.choice([8, 12]))
    for _ in range(trials):
        settings = world.draw()
        for _ in range(2):
            store.log(world.params(settings), world.metrics(world.curve(*settings), 1, dense=False))
    return SimulatedStudy(store.experiment(), direction(world), {"states": ["complete"] * 2 * trials})
