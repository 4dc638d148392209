"""Generators of studies with failed trials: a loss that is not finite, a result at chance level, a collapse, or lack of memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from advisor.model.space import FloatArray
from worlds.shortened import World, direction
from worlds.world import Random, SimulatedStudy, Store


def _add_failures(random: Random, fail: Callable[[World, FloatArray], tuple[FloatArray, FloatArray, str]]) -> SimulatedStudy:
    """Return a study in which trials above some learning rate fail. fail: returns costs, training losses and state of a failed
    trial."""
    world, store = World(random), Store("failures")
    edge = 10 ** random.uniform(-2.6, -1.9)
    states = []
    for _ in range(int(random.choice([16, 24, 36]))):
        settings = world.draw()
        costs = world.curve(*settings)
        losses, state = costs * 0.9, "complete"
        if settings[0] > edge:
            costs, losses, state = fail(world, costs)
        at = np.arange(1, len(costs) + 1) * 100
        store.log(world.params(settings), {world.metric: (at, world.values(costs)), "train_loss": (at, losses)})
        states.append(state)
    return SimulatedStudy(store.experiment(), direction(world), {"states": states, "edge": edge, "lr": world.lr})


def not_a_number(world: World, costs: FloatArray) -> tuple[FloatArray, FloatArray, str]:
    """Return a trial whose training loss is NaN from some step on, while the objective stays at chance level."""
    onset = int(world.random.integers(2, len(costs) - 3))
    losses = np.where(np.arange(len(costs)) >= onset, np.nan, costs * 0.9)
    return np.where(np.arange(len(costs)) >= onset, 0.9, costs), losses, "diverged"


def at_chance(world: World, costs: FloatArray) -> tuple[FloatArray, FloatArray, str]:
    """Return a trial whose network predicts a single class from the start; its loss still varies slightly."""
    wobble = 0.0 if "loss" not in world.metric else float(world.random.choice([0.0, 1e-4]))
    level = math.log(2) if "loss" in world.metric else 0.9
    made = level + world.random.normal(0, 1, len(costs)) * wobble
    return made, made, "not_learned"


def collapsed_trial(world: World, costs: FloatArray) -> tuple[FloatArray, FloatArray, str]:
    """Return a trial that learns first, and then collapses to a constant output."""
    onset = int(world.random.integers(5, len(costs) - 6))
    made = np.where(np.arange(len(costs)) >= onset, 0.9, costs)
    return made, made, "diverged"


def failing_studies(
    fail: Callable[[World, FloatArray], tuple[FloatArray, FloatArray, str]],
) -> Callable[[Random], SimulatedStudy]:
    return lambda random: _add_failures(random, fail)


def skipped_batches(random: Random) -> SimulatedStudy:
    """Return a study of healthy trials. Some end with a skipped batch whose loss is not finite; in some studies, the training loss
    is never finite."""
    world, store = World(random), Store("skipped")
    broken, trials = bool(random.integers(2)), int(random.choice([12, 24]))
    for _ in range(trials):
        settings = world.draw()
        metrics = world.metrics(world.curve(*settings), 10, dense=True)
        at, losses = metrics["train_loss"]
        losses = np.full(len(losses), np.nan) if broken else np.asarray(losses).copy()
        if random.random() < 0.4:
            losses[-1] = np.nan
        store.log(world.params(settings), {**metrics, "train_loss": (at, losses)})
    return SimulatedStudy(store.experiment(), direction(world), {"states": ["complete"] * trials})


def out_of_memory(random: Random, *, with_error: bool = True) -> SimulatedStudy:
    """Return a study whose runs above some batch size run out of memory before they log a curve. with_error: whether a tag holds
    the error's text."""
    world, store = World(random), Store("memory")
    sizes = [16, 32, 64, 128, 256, 512]
    limit = int(random.choice(sizes[2:5]))
    tag = str(random.choice(["error", "exception", "mlflow.note.content", "error_message"]))
    states = []
    for number in range(int(random.choice([18, 24, 36]))):
        settings, size = world.draw(), sizes[number % len(sizes)]
        params = {**world.params(settings), "batch_size": size}
        if size <= limit:
            store.log(params, world.metrics(world.curve(*settings), 10, dense=False))
        else:
            text = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
            store.log(params, {}, status="FAILED", tags={tag: text} if with_error else {})
        states.append("complete" if size <= limit else "infeasible")
    return SimulatedStudy(store.experiment(), direction(world), {"states": states, "limit": limit})
