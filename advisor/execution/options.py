"""What a launcher is told, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.execution.engines import Engine
from advisor.execution.jobs import Key
from advisor.execution.record import Outcome
from advisor.execution.sources import Source
from advisor.model.spec import StudySpec
from advisor.tracking.stores.location import Location


@dataclass(frozen=True)
class Launch:
    """What to run, where and how."""

    spec: StudySpec
    source: Source
    words: Sequence[str]
    """The command, with placeholders."""
    location: Location
    experiment: str
    folder: Path
    """For each job's output and its hyperparameters as a file."""
    engine: Engine
    timeout_s: float | None = None
    append: bool = True
    """Whether a command without placeholders gets the hyperparameters as options at its end."""
    keep_going: bool = False
    """Whether to go on where the first trials all fail."""


@dataclass
class Summary:
    """What became of the study's jobs."""

    total: int
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    maximize: bool = False

    @property
    def best(self) -> tuple[Key, float] | None:
        """Key and best value of the best job so far."""
        found = [(o.best, key) for key, o in self.outcomes.items() if o.best is not None]
        if not found:
            return None
        value, key = (max if self.maximize else min)(found)
        return key, value

    def counts(self) -> dict[str, int]:
        """How many ended how."""
        out: dict[str, int] = {}
        for outcome in self.outcomes.values():
            out[outcome.status] = out.get(outcome.status, 0) + 1
        return out


Tell = Callable[[Summary, str], None]
"""Told of the state, and of what just happened in one line (empty where nothing is worth a line)."""
