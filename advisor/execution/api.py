"""Lets the user's Python loop train the trials of a study. MLflow records them as for `advisor run`."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from advisor import contract
from advisor.contract.guard_stop import GuardStop
from advisor.contract.redact import redact
from advisor.execution.engines.process import Exit, is_out_of_memory
from advisor.execution.guarding import GuardedStudy, RunVerdict, StudyGuard
from advisor.execution.job import Job, default_seed, trial_count
from advisor.execution.job_env import job_environment, study_folder
from advisor.execution.ledger import Ledger
from advisor.execution.ledger.claims import HEARTBEAT_INTERVAL_S
from advisor.execution.ledger.exit_records import ExitRecord, ExitRecords
from advisor.execution.ledger.ledger import BLOCKED_STATES
from advisor.execution.ledger.record import CallRejectedError, JobOutcome, StoreUnreachableError, retry_while_unreachable
from advisor.execution.queue import make_queue
from advisor.model.errors import AdvisorError, UnansweredError
from advisor.model.space import HyperparameterValue
from advisor.model.spec import StudySpec
from advisor.model.spec_yaml import load_study_file
from advisor.tracking.stores.location import StoreLocation, absolute_uri, default_location_for_writing, parse_tracking_uri

_MAX_ERROR_CHARS = 500
GUARD_POLL_INTERVAL_S = 1.0
"""Seconds between two checks whether the early-stopping guard has a new verdict on the running trial."""


def open_study(
    study: str | Path | StudySpec,
    *,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    out: str | Path | None = None,
    guard: bool = False,
) -> OpenStudy:
    """Open a study to train its trials in this process.

    While the tracking store is unreachable, results are saved in the folder `out`; the next loop or `advisor run` sends the
    saved results to the store.

    Args:
        study: a study file, or a `StudySpec`.
        tracking_uri, out: as for `advisor run`.
        experiment: name of the experiment; None: the study's name.
        guard: whether a background process judges the running trial by the values logged so far; see `Trial.should_stop`.

    Raises AdvisorError if the file is invalid, the tracking store is unreachable, or the experiment has trials of another search
    space under the same study name.
    """
    spec = study if isinstance(study, StudySpec) else load_study_file(Path(study))
    location = parse_tracking_uri(tracking_uri) if tracking_uri else default_location_for_writing()
    folder = study_folder(None if out is None else Path(out), spec.study)
    return OpenStudy(spec, location, experiment or spec.study, folder, guard=guard)


class OpenStudy:
    """An open study, with the MLflow record of its trials."""

    def __init__(self, spec: StudySpec, location: StoreLocation, experiment: str, folder: Path, *, guard: bool) -> None:
        self.spec, self._location, self._experiment = spec, location, experiment
        self._ledger, self._records = Ledger(location, experiment, spec), ExitRecords(folder, location, experiment)
        self._guard = StudyGuard(GuardedStudy(experiment, location, spec)) if guard else None
        self._current: Trial | None = None

    def trials(self, count: int | None = None, *, seed: int | None = None) -> Iterator[Trial]:
        """Yield each trial that has not ended and that no other launcher trains. Each trial gets its own MLflow run.

        MLflow and our training hook log to the run of the current trial. If the loop ends or crashes during a trial, the next
        loop restarts it.

        Args:
            count: number of trials in the study; None: as in its file.
            seed: first seed; None: as for `advisor run`.

        Raises AdvisorError if the tracking store has been unreachable for ten minutes.
        """
        try:
            yield from self._all_trials(count, seed)
        finally:
            if self._guard is not None:
                self._guard.close()

    def _all_trials(self, count: int | None, seed: int | None) -> Iterator[Trial]:
        trial_count(self.spec, count)  # raises AdvisorError if the number is unknown
        if self._current is not None:
            # An exception may have ended an earlier loop before the loop recorded the end of its trial.
            self._current.record(Exit(1, interrupted=True))
        retry_while_unreachable(lambda: self._ledger.deliver_left_records(self._records))
        first_seed = default_seed(self.spec) if seed is None else seed
        read_earlier = partial(retry_while_unreachable, self._ledger.preceding_trials)
        queue = make_queue(self.spec, count, first_seed=first_seed, read_earlier=read_earlier)
        done_keys = {entry.key for entry in retry_while_unreachable(self._ledger.entries) if entry.state == "done"}
        while (jobs := retry_while_unreachable(lambda: queue.next(self._ledger.entries))) or queue.may_return_jobs():
            if not jobs:
                time.sleep(1.0)
            for job in (job for job in jobs if job.key not in done_keys):
                ((begun, run_id),) = retry_while_unreachable(partial(self._ledger.begin, [job]))
                if run_id in BLOCKED_STATES:
                    queue.defer_claimed_job(job, silent=run_id == "silent")
                else:
                    yield from self._yield_trial(Trial(begun, run_id, self.spec, self._ledger, self._records), begun)

    def _yield_trial(self, trial: Trial, job: Job) -> Iterator[Trial]:
        self._current = trial
        guard = self._guard

        def send_heartbeat() -> None:
            self._ledger.send_heartbeat_from_thread(trial.run_id)

        def forward_verdicts() -> None:
            reading = None if guard is None else guard.latest()
            for verdict in () if reading is None else reading.running:
                trial.judge(verdict)

        send_heartbeat()
        environment = job_environment(self.spec, job, trial.run_id, self._location, self._experiment)
        with ExitStack() as contexts:
            contexts.enter_context(_logging_to_run(absolute_uri(self._location), environment))
            contexts.enter_context(_repeat_in_background(HEARTBEAT_INTERVAL_S, send_heartbeat, "advisor-heartbeat"))
            if guard is not None:
                verdicts = _repeat_in_background(GUARD_POLL_INTERVAL_S, forward_verdicts, "advisor-verdicts", waits=True)
                contexts.enter_context(verdicts)
            try:
                yield trial
            except GeneratorExit:
                trial.record(Exit(1, interrupted=True))
                raise
            trial.record(Exit(0))


class Trial:
    """A training run: one trial of the study with one seed.

    `with trial:` records an exception in the block and suppresses it, so that the loop continues with the next trial.
    """

    def __init__(self, job: Job, run_id: str, spec: StudySpec, ledger: Ledger, records: ExitRecords) -> None:
        self.params: Mapping[str, HyperparameterValue] = job.params
        self.seed, self.number, self.name, self.run_id = job.seed, job.number, job.name, run_id
        self.outcome: JobOutcome | None = None
        """Outcome of the trial, or None until the outcome has been reported."""
        self.should_stop = False
        """True if the early-stopping guard asks the trial to end early; see `open_study`. A trial that ends early for this
        reason is recorded as pruned, or as diverged if its objective was not finite."""
        self._stop: GuardStop | None = None
        self._spec, self._ledger, self._records, self._ended = spec, ledger, records, False
        self._points: dict[int, tuple[float, int]] = {}
        """Objective values that are not yet in MLflow, in the form of `ExitRecord.points`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, Exception) or isinstance(error, UnansweredError):
            return False  # Ctrl-C ends the loop; the next loop restarts this trial
        if not self._ended:
            report_trial(self, error=error)
            warnings.warn(f"{self.name} failed: {_recorded_error_text(error)}", RuntimeWarning, stacklevel=2)
        return True

    def log(self, points: Mapping[int, float]) -> None:
        """Log objective values, keyed by optimizer step. If the store is unreachable, they are logged later."""
        now = int(1000 * time.time())
        self._points |= {step: (value, now) for step, value in points.items()}
        with suppress(StoreUnreachableError):
            self._ledger.log(self.run_id, self._points)
            self._points = {}

    def judge(self, verdict: RunVerdict) -> None:
        """Set `should_stop` if the verdict concerns this trial and recommends an early stop."""
        if verdict.run_id == self.run_id and verdict.stop and not self.should_stop:
            self._stop = verdict.as_stop()
            self.should_stop = True

    def record(self, process_exit: Exit, status: str | None = None, error: str | None = None) -> None:
        """Record how the trial ended; only the first call has an effect."""
        import mlflow

        if self._ended:
            return
        self._ended = True
        active_run = mlflow.active_run()
        if active_run is not None and active_run.info.run_id == self.run_id:  # the user's training code has not ended it
            mlflow.end_run("FINISHED" if process_exit.ok else "KILLED" if process_exit.interrupted else "FAILED")
        guard_stop = self._stop if process_exit.ok and status is None else None
        at, record = time.monotonic(), ExitRecord(self.name, self.run_id, process_exit, status, error, self._points, guard_stop)
        try:
            self.outcome = retry_while_unreachable(
                lambda: self._ledger.deliver(record, since_s=time.monotonic() - at),
                on_failure=lambda: self._records.keep(record),
                patience_s=0.0 if process_exit.interrupted else None,
            )
        except UnansweredError as unanswered:
            self._records.close()
            if not process_exit.interrupted:
                folder = self._records.folder
                raise UnansweredError(f"{unanswered}; the result of {self.name} is saved in {folder}") from None
        except CallRejectedError:
            self._records.forget(self.name)
            raise
        else:
            self._records.forget(self.name)

    def curve(self, value: float | Iterable[float] | Mapping[int, float]) -> dict[int, float]:
        """Return the values of the objective, keyed by optimizer step, from the argument of `report_trial`."""
        if isinstance(value, Mapping):
            return {int(step): float(v) for step, v in value.items()}
        evaluation_interval = self._spec.evaluate_every or 1
        if isinstance(value, Iterable) and getattr(value, "ndim", None) != 0:
            return {evaluation_interval * (i + 1): float(v) for i, v in enumerate(value)}
        number: Any = value  # `value` may be a zero-dimensional array or tensor
        return {self._spec.max_train_steps or 0: float(number)}


def report_trial(
    trial: Trial,
    value: float | Iterable[float] | Mapping[int, float] | None = None,
    *,
    status: str | None = None,
    error: BaseException | str | None = None,
) -> JobOutcome | None:
    """Record the result of a trial, and return the recorded outcome. If the trial was already reported, do nothing.

    Args:
        trial: a trial that `OpenStudy.trials` yielded.
        value: last value of the objective; or all evaluations, as {optimizer step: value} or as a list or array with one value per
            `evaluate_every` steps, or None if the training logged its values itself.
        status: one of `advisor.contract.STATUSES`; if None, it is inferred from the values: no_data without values, diverged if
            the last value is not finite, else complete.
        error: exception or text that explains a failed trial, whose status is then infeasible.
    """
    ended_statuses = [s for s in contract.STATUSES if s != "running"]
    if status is not None and status not in ended_statuses:
        raise AdvisorError(f"{status!r} is no status of a trial that has ended; use one of {', '.join(ended_statuses)}")
    if value is not None and trial.outcome is None:
        trial.log(trial.curve(value))
    if error is not None:
        status = status or "infeasible"
    trial.record(Exit(int(status == "infeasible")), status, None if error is None else _recorded_error_text(error))
    return trial.outcome


def _recorded_error_text(error: BaseException | str) -> str:
    """Return the class and message of an exception, preceded by "out of memory" if memory ran out."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}".strip(": ")
    line = " ".join(redact(text).split())[:_MAX_ERROR_CHARS]
    return f"out of memory: {line}" if is_out_of_memory(line) else line


@contextmanager
def _logging_to_run(uri: str, variables: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, make MLflow and our training hook log to the run in `variables` (environment variables by name)."""
    import mlflow

    previous_values = {name: os.environ.get(name) for name in (*variables, "MLFLOW_EXPERIMENT_ID")}
    previous_uri = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    os.environ.update(variables)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(previous_uri)
        for name, value in previous_values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _repeat_in_background(seconds: float, work: Callable[[], None], name: str, *, waits: bool = False) -> Iterator[None]:
    """Repeat `work` in a thread while the block runs. waits: whether its end waits for a running call."""
    block_ended = threading.Event()

    def repeat() -> None:
        while not block_ended.wait(seconds):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        block_ended.set()
        if waits:
            thread.join()
