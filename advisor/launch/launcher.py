"""Hands the jobs of a study to processes until all have ended, and stops cleanly when it is asked to."""

from __future__ import annotations

import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.launch import command
from advisor.launch.jobs import Job
from advisor.launch.ledger import HEARTBEAT_S, Ledger, Outcome
from advisor.launch.process import Running
from advisor.spec import StudySpec
from advisor.tracking.location import Location

PAUSE_S = 0.1
GIVE_UP = 3
"""So many first trials that all fail, or log nothing: the rest would as well."""


@dataclass(frozen=True)
class Launch:
    """What to run, where and how."""

    spec: StudySpec
    jobs: Sequence[Job]
    words: Sequence[str]
    """The command, with placeholders."""
    location: Location
    experiment: str
    folder: Path
    """For each job's output and its hyperparameters as a file."""
    slots: Sequence[Mapping[str, str]]
    """The environment of each place in which a trial can run."""
    timeout_s: float | None = None
    append: bool = True
    """Whether a command without placeholders gets the hyperparameters as options at its end."""
    keep_going: bool = False
    """Whether to go on where the first trials all fail."""


@dataclass
class Summary:
    """What became of the study's jobs."""

    total: int
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    elsewhere: int = 0
    """Jobs that others are training."""
    maximize: bool = False

    @property
    def best(self) -> tuple[str, float] | None:
        """Name and value of the best job so far."""
        found = [(o.best, self.names[key]) for key, o in self.outcomes.items() if o.best is not None]
        if not found:
            return None
        value, name = (max if self.maximize else min)(found)
        return name, value

    def counts(self) -> dict[str, int]:
        """How many ended how."""
        out: dict[str, int] = {}
        for outcome in self.outcomes.values():
            out[outcome.status] = out.get(outcome.status, 0) + 1
        return out


@dataclass(frozen=True, slots=True)
class _Place:
    job: Job
    run_id: str
    process: Running


class _Stop(BaseException):
    """Somebody asked this process to end."""


Tell = Callable[[Summary, str], None]
"""Told of the state, and of what just happened in one line (empty where nothing is worth a line)."""


def launch(plan: Launch, tell: Tell) -> Summary:
    """Train all jobs that have not ended yet. Raises KeyboardInterrupt after a clean stop; AdvisorError where going on is no use.

    What has ended stays as it is, so calling it again goes on where it was left, also after a `kill -9`.
    """
    check(plan.spec, plan.words)
    plan.folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(plan.location, plan.experiment, plan.spec)
    summary = Summary(len(plan.jobs), maximize=plan.spec.objective.direction == "maximize")
    summary.names = {job.key: job.name for job in plan.jobs}
    summary.outcomes = {k: o for k, o in ledger.finished().items() if k in summary.names}
    tell(summary, f"{len(summary.outcomes)} of {summary.total} had ended before." if summary.outcomes else "")
    work = _Work(plan, ledger, summary, tell)
    with _asked_to_stop():
        try:
            work.run(deque(job for job in plan.jobs if job.key not in summary.outcomes))
        except (_Stop, KeyboardInterrupt):
            work.stop()
            raise KeyboardInterrupt from None
        except BaseException:
            work.stop()
            raise
    return summary


class _Work:
    """The jobs that run now."""

    def __init__(self, plan: Launch, ledger: Ledger, summary: Summary, tell: Tell) -> None:
        self._plan, self._ledger, self._summary, self._tell = plan, ledger, summary, tell
        self._places: list[_Place | None] = [None] * len(plan.slots)
        self._beat = time.monotonic()
        self._fresh: list[Outcome] = []
        """Outcomes of this call."""

    def run(self, waiting: deque[Job]) -> None:
        """Until no job waits and none runs."""
        while waiting or any(self._places):
            for i, place in enumerate(self._places):
                if place is None and waiting:
                    self._start(i, waiting.popleft())
            self._collect()
            if time.monotonic() - self._beat > HEARTBEAT_S:
                self._beat = time.monotonic()
                for place in filter(None, self._places):
                    self._ledger.started(place.run_id, place.process.pid)
            time.sleep(PAUSE_S)

    def _start(self, slot: int, job: Job) -> None:
        run_id = self._ledger.claim(job)
        if run_id is None:
            self._summary.elsewhere += 1
            self._tell(self._summary, f"{job.name} is trained, or was, by another launcher.")
            return
        log, file = self._plan.folder / f"{job.name}.log", self._plan.folder / f"{job.name}.json"
        file.write_text(job.params_json(), encoding="utf-8")
        words = words_of(self._plan.spec, job, self._plan.words, file, run_id, append=self._plan.append)
        process = Running(
            words, {**self._environment(job, run_id), **self._plan.slots[slot]}, log, self._plan.timeout_s
        )
        self._places[slot] = _Place(job, run_id, process)
        self._ledger.started(run_id, process.pid)

    def _environment(self, job: Job, run_id: str) -> dict[str, str]:
        """What the training finds in its environment: enough for MLflow and our hook to log into the job's run."""
        spec = self._plan.spec
        return {
            "MLFLOW_TRACKING_URI": self._plan.location.uri,
            "MLFLOW_RUN_ID": run_id,
            "MLFLOW_EXPERIMENT_NAME": self._plan.experiment,
            "ADVISOR_STUDY": spec.study,
            "ADVISOR_TRIAL": str(job.number),
            "ADVISOR_SEED": str(job.seed),
            "ADVISOR_PARAMS": job.params_json(),
            **{f"ADVISOR_{name.upper()}": value for name, value in _given(spec).items() if name != "study"},
        }

    def _collect(self) -> None:
        for i, place in enumerate(self._places):
            ended = None if place is None else place.process.poll()
            if place is None or ended is None:
                continue
            self._places[i] = None
            outcome = self._ledger.ended(place.run_id, ended)
            if outcome is not None:
                self._summary.outcomes[place.job.key] = outcome
                self._tell(self._summary, _said(place, outcome))
                self._fresh.append(outcome)
                self._check()

    def _check(self) -> None:
        """Stop where the first trials show that the others would fail as well."""
        if self._plan.keep_going or len(self._fresh) != GIVE_UP or len(self._summary.outcomes) != GIVE_UP:
            return
        metric, logs = self._plan.spec.objective.metric, self._plan.folder
        if all(o.status == "infeasible" for o in self._fresh):
            raise AdvisorError(
                f"the first {GIVE_UP} trials all failed, the last with: {self._fresh[-1].error}; their output is in {logs}; "
                "mend the command, or pass --keep-going"
            )
        if all(o.status == "no_data" for o in self._fresh):
            raise AdvisorError(
                f"the first {GIVE_UP} trials ended without logging {metric}; the training must log it into the MLflow run that "
                f"MLFLOW_RUN_ID names (our hook does by itself, mlflow.start_run() too); their output is in {logs}"
            )

    def stop(self) -> None:
        """Stop all that runs; what had not ended is begun anew the next time."""
        running = [place for place in self._places if place is not None]
        for place in running:
            place.process.stop()
        for place in running:
            while (ended := place.process.poll()) is None:
                time.sleep(PAUSE_S)
            outcome = self._ledger.ended(place.run_id, ended)
            if outcome is not None:
                self._summary.outcomes[place.job.key] = outcome
        self._places = [None] * len(self._places)


def check(spec: StudySpec, words: Sequence[str]) -> None:
    """Raises AdvisorError for a placeholder of the command that nothing will fill."""
    command.check(words, spec.parameters, {*_given(spec), "trial", "seed", "json", "args", "run_id"})


def words_of(
    spec: StudySpec, job: Job, words: Sequence[str], file: Path, run_id: str = "RUN_ID", *, append: bool = True
) -> list[str]:
    """The command of one job; `file` holds its hyperparameters."""
    given = {"trial": str(job.number), "seed": str(job.seed), "json": str(file.resolve()), "run_id": run_id}
    return command.fill(words, job.params, {**_given(spec), **given}, append=append)


def _given(spec: StudySpec) -> dict[str, str]:
    """Placeholders that are the same in all jobs."""
    found: dict[str, Any] = {
        "study": spec.study,
        "max_train_steps": spec.max_train_steps,
        "evaluate_every": spec.evaluate_every,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _said(place: _Place, outcome: Outcome) -> str:
    """One line for a job that did not end well."""
    if outcome.status == "complete":
        return ""
    why = f": {outcome.error}" if outcome.error else ""
    words = {"infeasible": "failed", "no_data": "logged no objective", "stopped": "was stopped"}
    return f"{place.job.name} {words.get(outcome.status, outcome.status)}{why} ({place.process.log})"


def folder_of(base: Path, study: str) -> Path:
    """Where a study's output goes."""
    return base / (re.sub(r"[^\w.-]+", "-", study).strip("-.") or "study")


@contextmanager
def _asked_to_stop() -> Iterator[None]:
    """SIGTERM, as schedulers send it, stops as cleanly as Ctrl-C."""

    def stop(*_: object) -> None:
        raise _Stop

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
