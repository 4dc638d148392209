"""Engines run trainings on this machine, a Ray cluster or SLURM. This module defines the interface of engines for launchers.

An engine starts training processes and reports how each of them ended. It does not know studies and MLflow; only the launcher does.
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
    """A training process to start."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    """Variables to add to the process's environment. The variables may hold a password, so they never appear in arguments or
    messages.
    """
    log: Path
    """File that receives the output of the process."""
    params_file: Path
    """File with the hyperparameters, written before the process starts. The command may contain the file's path."""
    params_json: str
    """Content of `params_file`: the hyperparameters as JSON."""
    timeout_s: float | None = None


class Training(Protocol):
    """A training process that an engine has started."""

    def poll(self) -> Exit | None:
        """Return how the training ended; None while the training is queued or running."""

    def stop(self) -> None:
        """Request the training to stop, as Ctrl-C does. A second call kills it. `poll` reports its end."""

    def note(self) -> Mapping[str, Any]:
        """Return plain values with which other launchers can find the training and check if it still runs."""


class Engine(Protocol):
    """Starts training processes."""

    def room(self) -> int:
        """Return the number of trainings that the engine can start now."""

    def start(self, tasks: Sequence[Task]) -> Sequence[Training]:
        """Start at most `room()` trainings, in the given order. Raises AdvisorError if none of them can ever run."""

    def close(self) -> None:
        """Release the engine's resources."""
