"""Defines the plan of a launch, the summary of outcomes, and the lines of text that report ended runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from advisor.execution.engines import Engine
from advisor.execution.guarding import GuardedStudy
from advisor.execution.job import JobKey, job_name
from advisor.execution.ledger.record import FAILED_STATUSES, JobOutcome
from advisor.execution.queue import JobQueue
from advisor.model.spec import StudySpec
from advisor.system.notifier import Notifier
from advisor.tracking.stores.location import StoreLocation


@dataclass(frozen=True)
class LaunchPlan:
    """The command to run, the engine, the output folder and the options of a launch."""

    spec: StudySpec
    queue: JobQueue
    command: Sequence[str]
    """Words of the command, with placeholders."""
    location: StoreLocation
    experiment: str
    folder: Path
    """Folder for the output and the hyperparameter file of each job."""
    engine: Engine
    timeout_s: float | None = None
    append_hyperparameters: bool = True
    """If True, append all hyperparameters to a command without placeholders for them."""
    keep_going: bool = False
    """If True, continue even if all of the first trials fail."""
    guard: GuardedStudy | None = None
    """The study whose running trials are judged, if any."""
    stop_doomed: bool = False
    """If True, stop trials that cannot become the best, according to the early-stopping guard."""
    notifier: Notifier | None = None
    """Sends notifications about verdicts and failed trials."""


@dataclass
class Summary:
    """Outcomes of the jobs of a study that have ended by now."""

    total: int
    outcomes: dict[JobKey, JobOutcome] = field(default_factory=dict)
    maximize: bool = False

    @property
    def best(self) -> tuple[JobKey, float] | None:
        """(Key, objective value) of the first job with the best objective value so far, or None while no job has a value."""
        leaders = self.leaders
        return (leaders[0], float(self.outcomes[leaders[0]].best or 0.0)) if leaders else None

    @property
    def leaders(self) -> list[JobKey]:
        """Keys of all jobs that share the best objective value so far, in ascending order. Only an analysis can choose one."""
        values = {key: o.best for key, o in self.outcomes.items() if o.best is not None}
        best_value = (max if self.maximize else min)(values.values(), default=None)
        return sorted(key for key, value in values.items() if value == best_value)

    @property
    def failed(self) -> int:
        return sum(outcome.status in FAILED_STATUSES for outcome in self.outcomes.values())

    def counts(self) -> Mapping[str, int]:
        return Counter(outcome.status for outcome in self.outcomes.values())


SummaryCallback = Callable[[Summary, str], None]
"""Callback that receives the summary and one line about the latest event; the line may be empty."""


class EndedRunLines:
    """Produces a line of text for each run that ended with a result, for a log file instead of a terminal."""

    def __init__(self, metric: str, first_seed: int) -> None:
        self._metric, self._seed = metric, first_seed
        self._known: set[JobKey] | None = None

    def new_lines(self, summary: Summary) -> list[str]:
        """Return a line for each run that ended with a result since the last call; none at the first call."""
        before, self._known = self._known, set(summary.outcomes)
        if before is None:
            return []
        best, lines = summary.best, []
        for place, (key, outcome) in enumerate(summary.outcomes.items(), start=1):
            if key not in before and outcome.status == "complete":
                value = "complete" if outcome.best is None else f"{self._metric} {outcome.best:.3g}"
                is_leader = best is None or best[1] == outcome.best
                leader_text = "" if is_leader or best is None else f" (best {best[1]:.3g}, {job_name(best[0], self._seed)})"
                lines.append(f"{place} of {summary.total}: {job_name(key, self._seed)}, {value}{leader_text}")
        return lines
