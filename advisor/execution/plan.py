"""What a launch runs, and its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from advisor.execution.engines import Engine
from advisor.execution.job import Key
from advisor.execution.ledger.record import Outcome
from advisor.execution.queue import JobQueue
from advisor.model.spec import StudySpec
from advisor.tracking.stores.location import Location


@dataclass(frozen=True)
class LaunchPlan:
    """What to run, where and how."""

    spec: StudySpec
    queue: JobQueue
    words: Sequence[str]
    """The command, with placeholders."""
    location: Location
    experiment: str
    folder: Path
    """Folder for the output and the hyperparameters of each job."""
    engine: Engine
    timeout_s: float | None = None
    append: bool = True
    """Append the hyperparameters to a command without placeholders."""
    keep_going: bool = False
    """Continue even if the first trials all fail."""


@dataclass
class Summary:
    """Outcomes of the study's jobs so far."""

    total: int
    outcomes: dict[Key, Outcome] = field(default_factory=dict)
    maximize: bool = False

    @property
    def best(self) -> tuple[Key, float] | None:
        """Key and value of the best job so far."""
        values = [(o.best, key) for key, o in self.outcomes.items() if o.best is not None]
        if not values:
            return None
        value, key = (max if self.maximize else min)(values)
        return key, value

    def counts(self) -> Mapping[str, int]:
        """Return the number of jobs by status."""
        return Counter(outcome.status for outcome in self.outcomes.values())


class OnUpdate(Protocol):
    """Receives the state, and one line of news, which may be empty."""

    def __call__(self, summary: Summary, news: str, /) -> None:
        """Report the state."""
