"""Engines start training processes on this machine, on a Ray cluster, or on SLURM, and report how they ended. This module
defines the interface between engines and the launcher. Engines know neither studies nor MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from advisor.execution.engines.process import Exit

__all__ = ["Engine", "Exit", "Task", "Training"]


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    """Variables to add to the environment of the training process. They may contain a password."""
    log: Path
    params_file: Path
    """File with the hyperparameters, written before the training process starts. The command may contain the path of this file."""
    params_json: str
    timeout_s: float | None = None


class Training(Protocol):
    """A training process that an engine has started."""

    def poll(self) -> Exit | None:
        """Return how the training process ended, or None while the process is queued or running."""

    def stop(self) -> None:
        """Ask the training process to stop, as Ctrl-C does. A second call kills the process."""

    def claim_details(self) -> Mapping[str, Any]:
        """Return entries for the job's claim, by which other launchers check if the training process still runs."""


class Engine(Protocol):
    """Starts training processes."""

    def free_capacity(self) -> int:
        """Return the number of training processes that the engine can start now."""

    def start(self, tasks: Sequence[Task]) -> Sequence[Training]:
        """Start at most `free_capacity()` training processes, in the given order. Raises AdvisorError if none can run."""

    def close(self) -> None:
        """Release the resources of the engine."""
