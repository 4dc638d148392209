"""The outcome of a trial: its best evaluation and its end."""

from __future__ import annotations

import math
from typing import Literal

Direction = Literal["minimize", "maximize"]


def is_better(value: float, than: float, direction: Direction) -> bool:
    """Return whether `value` beats `than`. Any finite value beats a non-finite one."""
    if not math.isfinite(value):
        return False
    if not math.isfinite(than):
        return True
    return value < than if direction == "minimize" else value > than


class Outcome:
    """Tracks the training loss and the objective of one trial."""

    def __init__(self, objective: str, direction: Direction) -> None:
        self._objective, self._direction = objective, direction
        self.best: tuple[int, float] | None = None
        """Step and value of the best evaluation."""
        self.evaluated = False
        """Whether the objective was ever evaluated, also with a non-finite value."""
        self._last: dict[str, float] = {}

    def update(self, step: int, name: str, value: float) -> None:
        """Record a value of the training loss or the objective."""
        self._last[name] = value
        if name != self._objective:
            return
        self.evaluated = True
        if self.best is None:
            self.best = (step, value) if math.isfinite(value) else None
        elif is_better(value, self.best[1], self._direction):
            self.best = (step, value)

    def final_status(self, steps_done: int, max_train_steps: int | None) -> str:
        """Return one of `contract.STATUSES` for a trial whose loop ended without an exception.

        Divergence takes precedence, because loops stop early on divergence.
        """
        if not all(math.isfinite(value) for value in self._last.values()):
            return "diverged"
        if not self.evaluated:
            return "no_data"
        if max_train_steps is not None and steps_done < max_train_steps:
            return "stopped"
        return "complete"
