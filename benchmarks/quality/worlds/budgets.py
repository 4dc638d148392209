"""A situation in which one experiment has short trials, and later longer trials with other learning rates."""

from __future__ import annotations

import numpy as np

from worlds.world import Outcome, Random, SimulatedStudy, Situation, Store


def _short_then_long(random: Random) -> SimulatedStudy:
    """Return a study in which the learning rate hardly matters; longer trials are better, and their learning rates were drawn from
    a different range."""
    store, short = Store("lengths"), int(random.choice([5, 10, 20]))
    length_name = str(random.choice(["epochs", "max_steps", ""]))
    shift = float(random.choice([-1.0, 1.0])) * random.uniform(1.0, 1.5)
    for length, start in ((short, -3.0), (5 * short, -3.0 + shift)):
        for _ in range(int(random.integers(12, 20))):
            rate = 10 ** random.uniform(start - 1, start + 1)
            at = np.arange(1, length + 1)
            loss = 0.3 + 2 * np.exp(-at / (2 * short)) + 0.01 * random.standard_normal(length)
            params = {"lr": rate, "weight_decay": 10 ** random.uniform(-6, -2)}
            store.log(
                params | ({length_name: length} if length_name else {}), {"val_loss": (at, loss), "train_loss": (at, loss)}
            )
    return SimulatedStudy(store.experiment(), {"objective": "val_loss", "direction": "minimize"})


def _takes_length_for_setting(outcome: Outcome) -> bool:
    """Return whether a rule about the search space mistakes the effect of the training length for one of the learning rate, or the
    report does not mention different lengths."""
    claims = [f for f in outcome.fired("space-boundary", "space-shrink", "space-scale") if f.subject == "lr"]
    return bool(claims) or "different lengths" not in outcome.text


SITUATIONS: tuple[Situation, ...] = (
    Situation(
        "A33 short trials, then long ones at other rates",
        "length taken for the rate, or not named",
        _short_then_long,
        _takes_length_for_setting,
        bound=0.1,
    ),
)
