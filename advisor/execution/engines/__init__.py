"""Where trainings run: this machine, a Ray cluster, SLURM. This is the whole interface between launchers and engines.

An engine starts trainings and says how each ended. It knows nothing of studies, nor of MLflow, which has the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from advisor.execution.engines.process import Exit

__all__ = ["Engine", "Exit", "Task", "Training"]


@dataclass(frozen=True, slots=True)
class Task:
    """A training to start."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    """Variables added to the existing ones. May contain a password, so it goes into no argument and no message."""
    log: Path
    """File for its output."""
    params_file: Path
    """File of its hyperparameters, to be written before it starts. Its words may name it."""
    params_json: str
    """Content of that file."""
    timeout_s: float | None = None


class Training(Protocol):
    """A training that was started."""

    def poll(self) -> Exit | None:
        """Return how it ended, or None while it waits or runs."""

    def stop(self) -> None:
        """Request it to stop, as Ctrl-C does; the second request kills it. `poll` shows when it has ended."""

    def note(self) -> Mapping[str, Any]:
        """Return plain values by which others find out whether it still runs after its launcher failed."""


class Engine(Protocol):
    """Starts trainings."""

    def room(self) -> int:
        """Return the number of trainings that can be started now."""

    def start(self, tasks: Sequence[Task]) -> Sequence[Training]:
        """Start at most `room()` trainings, in this order. Raises AdvisorError if none could ever run."""

    def close(self) -> None:
        """Release its resources."""
