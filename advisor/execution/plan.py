"""Defines the plan of a launch, and the summary of its jobs' outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from advisor.execution.engines import Engine
from advisor.execution.guarding import GuardedStudy
from advisor.execution.job import Key
from advisor.execution.ledger.record import JobOutcome
from advisor.execution.ledger.retries import FAILED_STATUSES
from advisor.execution.queue import JobQueue
from advisor.model.spec import StudySpec
from advisor.system.notifier import Notifier
from advisor.tracking.stores.location import StoreLocation


@dataclass(frozen=True)
class LaunchPlan:
    """The command to run, the engine, the output folder and the options of a launch."""

    spec: StudySpec
    queue: JobQueue
    words: Sequence[str]
    """Words of the command, with placeholders."""
    location: StoreLocation
    experiment: str
    folder: Path
    """Folder for the output and the hyperparameter file of each job."""
    engine: Engine
    timeout_s: float | None = None
    append: bool = True
    """If True, append all hyperparameters to a command that has no placeholder for any of them."""
    keep_going: bool = False
    """If True, continue even if all of the first trials fail."""
    guard: GuardedStudy | None = None
    """The study whose running trials are judged; None to judge none."""
    stop_doomed: bool = False
    """If True, stop trials that cannot become the best, according to the early-stopping guard."""
    notifier: Notifier | None = None
    """Sends notifications about verdicts and failed trials; None to send none."""


@dataclass
class Summary:
    """Outcomes of the jobs of a study that have ended by now."""

    total: int
    outcomes: dict[Key, JobOutcome] = field(default_factory=dict)
    maximize: bool = False

    @property
    def best(self) -> tuple[Key, float] | None:
        """(Key, objective value) of the first job with the best objective value so far; None if no job has a value."""
        leaders = self.leaders
        return (leaders[0], float(self.outcomes[leaders[0]].best or 0.0)) if leaders else None

    @property
    def leaders(self) -> list[Key]:
        """Keys of all jobs with the best objective value so far, in ascending order. Only an analysis can decide which of these
        jobs is better."""
        values = {key: o.best for key, o in self.outcomes.items() if o.best is not None}
        best = (max if self.maximize else min)(values.values(), default=None)
        return sorted(key for key, value in values.items() if value == best)

    @property
    def failed(self) -> int:
        """Number of jobs without a result because of an error in the training script or in its command."""
        return sum(outcome.status in FAILED_STATUSES for outcome in self.outcomes.values())

    def counts(self) -> Mapping[str, int]:
        """Return the number of jobs with each status."""
        return Counter(outcome.status for outcome in self.outcomes.values())


class SummaryCallback(Protocol):
    """Callback that receives the summary and one line about the latest event; the line may be empty."""

    def __call__(self, summary: Summary, news: str, /) -> None:
        """Report the current summary and a line about the latest event."""
