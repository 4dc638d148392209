"""Where trainings run: this machine, a Ray cluster, SLURM. All that a launcher asks of an engine is here.

An engine starts trainings and is asked how each ended; it knows nothing of studies, and nothing of MLflow, which has the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from advisor.execution.engines.process import Ended

__all__ = ["Ended", "Engine", "Task", "Training"]


@dataclass(frozen=True, slots=True)
class Task:
    """A training to start."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    """Added to the environment that is there; it may hold a password, so it goes into no argument and no message."""
    log: Path
    """File for what it prints."""
    file: Path
    """File of its hyperparameters, which its words may name; to be there when it starts."""
    text: str
    """What is to stand in it."""
    timeout_s: float | None = None


class Training(Protocol):
    """One that was started."""

    def poll(self) -> Ended | None:
        """How it ended; None while it runs or waits to."""

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does; asked a second time, it is killed. `poll` tells when it has ended."""

    def note(self) -> Mapping[str, Any]:
        """What lets others find out whether it still runs when its launcher is gone; plain values."""


class Engine(Protocol):
    """Starts trainings."""

    def room(self) -> int:
        """How many trainings may be started now."""

    def start(self, tasks: Sequence[Task]) -> Sequence[Training]:
        """Start as many as there is room for, in this order. Raises AdvisorError where none could ever run."""

    def close(self) -> None:
        """Give back what it holds."""
