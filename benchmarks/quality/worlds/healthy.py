"""Healthy small studies: a random search in a sensible space, with logged losses and learning rates, in which nothing is wrong."""

from __future__ import annotations

import numpy as np

from worlds.world import Outcome, Random, SimulatedStudy, Situation, Store


def healthy(random: Random) -> SimulatedStudy:
    """Return a study of 6 to 30 trials of one to four hyperparameters. The optimum lies well inside the ranges of the space, and
    the curves settle."""
    count, axes = int(random.integers(6, 31)), int(random.integers(1, 5))
    names = ["learning_rate", "weight_decay", "dropout", "label_smoothing"][:axes]
    at, optimum = random.random((count, axes)), random.uniform(0.3, 0.7, axes)
    weights = random.lognormal(0, 0.7, axes)
    losses = ((at - optimum) ** 2 * weights).sum(1) / weights.sum()
    losses = 1 + 2 * losses + 10 ** random.uniform(-2.3, -1.3) * random.normal(size=count)
    evaluations, jitter = int(random.choice([6, 10, 20, 30])), 10 ** random.uniform(-3, -2)
    share, fine = np.arange(1, evaluations + 1) / evaluations, np.arange(1, 201) / 200
    pace, rate = random.uniform(4, 9), random.choice(["cosine", "linear"])
    steps = int(random.choice([2_000, 10_000, 50_000]))

    decay = 0.5 * (1 + np.cos(np.pi * fine)) if rate == "cosine" else 1 - fine
    at_steps, at_fine = ((steps * t).astype(np.int64) for t in (share, fine))
    fall, fine_fall = 2 * np.exp(-pace * share), 2 * np.exp(-pace * fine)
    store = Store()
    for row, loss in zip(at, losses, strict=True):
        ends = (1e-4, 1e-1), (1e-6, 1e-2)
        values = [low * (high / low) ** u for (low, high), u in zip(ends, row, strict=False)]
        values += [w * u for w, u in zip((0.5, 0.2), row[2:], strict=False)]
        store.log(
            {**dict(zip(names, map(float, values), strict=True)), "epochs": 10},
            {
                "val_loss": (at_steps, loss + fall + jitter * random.normal(size=evaluations)),
                "train_loss": (at_fine, loss - 0.05 + fine_fall + 0.05 * random.normal(size=200)),
                "lr": (at_fine, values[0] * decay),
            },
        )
    return SimulatedStudy(store.experiment(), {"objective": "val_loss"})


def _has_critical_finding(outcome: Outcome) -> bool:
    return any(f.severity == "critical" for f in outcome.fired())


def _has_several_warnings(outcome: Outcome) -> bool:
    return sum(f.severity != "note" and f.explained_by is None for f in outcome.fired()) > 1


SITUATIONS: tuple[Situation, ...] = (
    Situation("G01 healthy small study", "a finding is critical", healthy, _has_critical_finding),
    Situation("G02 healthy small study", "more than one thing is worth doing", healthy, _has_several_warnings, bound=0.1),
)
