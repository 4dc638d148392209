"""A study's trials in a Python loop, sharing the work and the record with `advisor run`."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from advisor import contract
from advisor.contract.redact import redact
from advisor.execution.claims import HEARTBEAT_S
from advisor.execution.engines.process import Ended, out_of_memory
from advisor.execution.exit_records import Ending, Endings
from advisor.execution.job_env import environment_of, folder_of
from advisor.execution.jobs import Job, first_seed_of
from advisor.execution.ledger import TAKEN, Ledger
from advisor.execution.record import (
    LONGEST_PAUSE_S,
    PATIENCE_S,
    DeliveringError,
    LaterError,
    Outcome,
    RefusedError,
    UnansweredError,
)
from advisor.execution.sources import Source, check, source_of
from advisor.model.errors import AdvisorError
from advisor.model.space import Value
from advisor.model.spec import StudySpec
from advisor.tracking.stores.location import default_for_writing, from_anywhere, locate

_PAUSE_S = 0.2

Result = TypeVar("Result")


def open_study(
    study: str | Path | StudySpec,
    *,
    tracking_uri: str | None = None,
    experiment: str | None = None,
    out: str | Path | None = None,
) -> OpenStudy:
    """A study whose trials are to be trained in this process: a study file, or the spec itself.

    tracking_uri, out: as for `advisor run`; experiment: its name, by default the study's. What became of a trial while the store
    did not answer is kept under `out`, and recorded by the next loop or `advisor run`. Raises AdvisorError where the file has a
    mistake, the store cannot be reached, or the experiment holds trials of another space under this study's name.
    """
    from advisor.model.spec_yaml import load

    spec = study if isinstance(study, StudySpec) else load(Path(study))
    location = locate(tracking_uri) if tracking_uri else default_for_writing()
    name = experiment or spec.study
    endings = Endings(folder_of(None if out is None else Path(out), spec.study), location, name)
    return OpenStudy(
        spec, Ledger(location, name, spec), endings, lambda job, run_id: _Place(spec, job, run_id, location, name)
    )


class OpenStudy:
    """A study and the record of its trials; made by `open_study`."""

    def __init__(self, spec: StudySpec, ledger: Ledger, endings: Endings, place: Callable[[Job, str], _Place]) -> None:
        self.spec = spec
        self._ledger, self._endings, self._place = ledger, endings, place
        self._left: Trial | None = None

    def trials(self, count: int | None = None, *, seed: int | None = None) -> Iterator[Trial]:
        """The trials that have not ended and that nobody else trains, one after another, each in an MLflow run of its own.

        count: how many trials the study has (None: as its file says); seed: the first one (None: as `advisor run` chooses it).
        While a trial is the loop's, MLflow and our hook log into its run. Where a loop is left in a trial, or dies there, that
        trial is begun anew by whoever iterates next. Raises AdvisorError once the store has not answered for ten minutes.
        """
        check(self.spec, count)
        if self._left is not None:
            self._left.record(Ended(1, interrupted=True))  # a loop that an exception ended may not have been closed yet
        _patiently(lambda: self._ledger.take_over(self._endings))
        first_seed = first_seed_of(self.spec) if seed is None else seed
        source = source_of(self.spec, count, first_seed=first_seed, earlier=lambda: _patiently(self._ledger.earlier))
        done = {entry.key for entry in _patiently(self._ledger.entries) if entry.state == "done"}
        while (job := self._next(source)) is not None:
            if job.key in done:
                continue
            ((begun, got),) = _patiently(lambda job=job: self._ledger.begin([job]))  # type: ignore[misc]
            if got in TAKEN:
                source.refused(job, got)  # type: ignore[arg-type]
                continue
            yield from self._train(Trial(begun, got, self.spec, self._ledger, self._endings), self._place(begun, got))

    def _next(self, source: Source) -> Job | None:
        while not (jobs := _patiently(lambda: source.next(self._ledger.entries))) and source.waits():
            time.sleep(1.0)
        return jobs[0] if jobs else None

    def _train(self, trial: Trial, place: _Place) -> Iterator[Trial]:
        self._left = trial
        with place.taken(), _beating(self._ledger, trial.run_id):
            try:
                yield trial
            except GeneratorExit:
                trial.record(Ended(1, interrupted=True))
                raise
            trial.record(Ended(0))


class Trial:
    """One training: a trial of the study with one seed.

    `with trial:` around the training records an exception as what it was and goes on with the next trial.
    """

    def __init__(self, job: Job, run_id: str, spec: StudySpec, ledger: Ledger, endings: Endings) -> None:
        self.params: Mapping[str, Value] = job.params
        self.seed, self.number, self.name, self.run_id = job.seed, job.number, job.name, run_id
        self.outcome: Outcome | None = None
        """What became of it, once it was reported."""
        self._spec, self._ledger, self._endings, self._over = spec, ledger, endings, False
        self._points: dict[int, tuple[float, int]] = {}
        """Logged, but not in the record yet, as `Ending.points`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, UnansweredError):
            return False  # Ctrl-C is for the loop, which leaves the trial to be begun anew
        if not self._over:
            report_trial(self, error=error)
            warnings.warn(f"{self.name} failed: {_words(error)}", RuntimeWarning, stacklevel=2)
        return True

    def log(self, points: Mapping[int, float]) -> None:
        """Log values of the objective by optimizer step; at the latest when the trial ends, should the store not answer now."""
        now = int(1000 * time.time())
        self._points |= {step: (value, now) for step, value in points.items()}
        with suppress(LaterError):
            self._ledger.log(self.run_id, self._points)
            self._points = {}

    def record(self, ended: Ended, status: str | None = None, error: str | None = None) -> None:
        """Record that it ended; only the first time counts."""
        if self._over:
            return
        self._over = True
        _end_active_run(self.run_id, ended)
        at, ending = time.monotonic(), Ending(self.name, self.run_id, ended, status, error, self._points)
        try:
            self.outcome = _patiently(
                lambda: self._ledger.deliver(ending, since_s=time.monotonic() - at),
                away=lambda: self._endings.keep(ending),
                patience_s=0.0 if ended.interrupted else PATIENCE_S,
            )
        except UnansweredError as away:
            self._endings.close()
            if not ended.interrupted:
                raise UnansweredError(f"{away}; what became of {self.name} is kept in {self._endings.folder}") from None
        except RefusedError:
            self._endings.forget(self.name)
            raise
        else:
            self._endings.forget(self.name)

    def curve(self, value: float | Iterable[float] | Mapping[int, float]) -> dict[int, float]:
        """Values of the objective by optimizer step, from what a training gives."""
        if isinstance(value, Mapping):
            return {int(step): float(v) for step, v in value.items()}
        every = self._spec.evaluate_every or 1
        if isinstance(value, Iterable) and getattr(value, "ndim", None) != 0:
            return {every * (i + 1): float(v) for i, v in enumerate(value)}
        number: Any = value  # also an array or a tensor without dimensions
        return {self._spec.max_train_steps or 0: float(number)}


def report_trial(
    trial: Trial,
    value: float | Iterable[float] | Mapping[int, float] | None = None,
    *,
    status: str | None = None,
    error: BaseException | str | None = None,
) -> Outcome | None:
    """Record what became of a trial; gives the record.

    value: of the objective: the last one; or all evaluations, {optimizer step: value}, or as a list or an array, `evaluate_every`
    steps apart; None where the training logged them itself. status: one of `advisor.contract.STATUSES`; None: what the values say:
    complete, diverged where the last is not finite, no_data without any. error: what ended it; the trial is infeasible then. A
    trial that was reported stays as it was.
    """
    if status is not None and status not in set(contract.STATUSES) - {"running"}:
        known = ", ".join(s for s in contract.STATUSES if s != "running")
        raise AdvisorError(f"{status!r} is no status of a trial that has ended; there are {known}")
    if value is not None and trial.outcome is None:
        trial.log(trial.curve(value))
    if error is not None:
        status = status or "infeasible"
    failed = status == "infeasible"
    trial.record(Ended(int(failed)), status, None if error is None else _words(error))
    return trial.outcome


def _words(error: BaseException | str) -> str:
    """An error as the record has it: class and message, with lack of memory said first."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}".strip(": ")
    line = " ".join(redact(text).split())[:500]
    return f"out of memory: {line}" if out_of_memory(line) else line


class _Place:
    """What MLflow and our hook find in this process while a trial is trained in it."""

    def __init__(self, spec: StudySpec, job: Job, run_id: str, location: Any, experiment: str) -> None:
        self._given = environment_of(spec, job, run_id, location, experiment)
        self._uri = from_anywhere(location)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Within it they log into the trial's run."""
        import mlflow

        before = {name: os.environ.get(name) for name in (*self._given, "MLFLOW_EXPERIMENT_ID")}
        tracking_uri = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(self._uri)
        os.environ.update(self._given)
        try:
            yield
        finally:
            mlflow.set_tracking_uri(tracking_uri)
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _end_active_run(run_id: str, ended: Ended) -> None:
    """End the run where the training left it open."""
    import mlflow

    active = mlflow.active_run()
    if active is not None and active.info.run_id == run_id:
        mlflow.end_run("FINISHED" if ended.fine else "KILLED" if ended.interrupted else "FAILED")


@contextmanager
def _beating(ledger: Ledger, run_id: str) -> Iterator[None]:
    """Within it other launchers hear that this one lives."""
    over = threading.Event()
    ledger.pulse(run_id)

    def beat() -> None:
        while not over.wait(HEARTBEAT_S):
            ledger.pulse(run_id)

    thread = threading.Thread(target=beat, name="advisor-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _patiently(
    call: Callable[[], Result], *, away: Callable[[], None] = lambda: None, patience_s: float | None = None
) -> Result:
    """The call's result, tried again while the store is unwell, for `patience_s` (None: `PATIENCE_S`); first `away` is called."""
    until, pause = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s), 1.0
    while True:
        try:
            return call()
        except DeliveringError:
            time.sleep(_PAUSE_S)
        except LaterError as error:
            if pause == 1.0:
                away()
            if time.monotonic() + pause > until:
                raise UnansweredError(f"the store does not answer: {error}; run the same again when it does") from None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
