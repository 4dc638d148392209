"""Judges the running trials of a study in a separate process, so that training processes and launchers do not wait for verdicts.

The process runs `main`: it writes each `Reading` of the tracking store to its standard output as JSON, and ends when its standard
input is closed, also if its launcher is killed.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from advisor.contract.guard_stop import GuardStop, is_last_step, read_guard_stop
from advisor.contract.redact import redact
from advisor.engine.guard import running_verdicts
from advisor.execution.ledger.record import CallRejectedError, StoreUnreachableError, call_mlflow_once
from advisor.history.pool import add_earlier_trials
from advisor.model.errors import AdvisorError, NothingToJudge
from advisor.model.spec import StudySpec
from advisor.tracking import read_rounds, read_study
from advisor.tracking.stores.client import open_client
from advisor.tracking.stores.location import StoreLocation, absolute_uri, parse_tracking_uri, require_local

STORE_READ_INTERVAL_S = 10.0
"""Minimum seconds between two reads of the tracking store."""
MIN_PAUSE_TO_READ_RATIO = 10.0
"""Minimum pause after each read of the tracking store except the first, as a multiple of the duration of that read."""
MAX_RESTART_PAUSE_S = 300.0
"""Maximum seconds before a restart of the guard's process."""


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The guard's verdict on one running trial, as plain values."""

    run_id: str
    trial: str
    state: str
    step: int
    length: float | None
    """Planned length of the trial in steps, if known."""
    stop: bool
    """True if the trial should be stopped; never for a continued trial or one that has reached its planned length."""
    message: str

    def as_stop(self) -> GuardStop:
        return GuardStop(self.state, self.step, self.message, time.time(), self.length)


@dataclass(frozen=True, slots=True)
class Reading:
    """State of a study's trials when the tracking store was read."""

    study: str = ""
    running: tuple[RunVerdict, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """Reason of the failure by name of each failed trial."""
    stopped: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    """(Step, reason) of the stop by name of each trial that was stopped early."""
    error: str | None = None
    """Why the tracking store could not be read, in one line; None if it was read."""


_READING_TYPE = TypeAdapter(Reading)


class ReadPacer:
    """Spaces the reads of a tracking store, so that a slow store serves the guard less than a tenth of the time.

    The first read also includes start-up, such as importing a database driver. It says little about the store, so the pause after
    it is only as long as the read itself, or `interval_s` seconds if that is longer.
    """

    def __init__(self, interval_s: float = STORE_READ_INTERVAL_S) -> None:
        self._interval_s, self._ratio = interval_s, 1.0

    def pause_s(self, reading_s: float) -> float:
        """Return the seconds to wait before the next read, if the last one took `reading_s` seconds."""
        pause = max(self._interval_s, self._ratio * reading_s)
        self._ratio = MIN_PAUSE_TO_READ_RATIO
        return pause


@dataclass(frozen=True, slots=True)
class GuardedStudy:
    """A study whose running trials are judged, and the settings with which to read the study."""

    experiment: str
    location: StoreLocation
    spec: StudySpec | None = None
    """Study file; None for the one stored in the MLflow experiment."""
    earlier_rounds: bool = False
    """True if trials of earlier rounds also count as data, as in a search over several rounds."""
    objective: str | None = None
    direction: Any = None
    interval_s: float = STORE_READ_INTERVAL_S

    def read(self) -> Reading:
        """Read the tracking store, and judge the running trials. Without an answer, the `Reading` has the reason in `error`."""
        try:
            settings: dict[str, Any] = {"objective": self.objective, "direction": self.direction, "spec": self.spec}
            settings |= {"tracking_uri": absolute_uri(self.location), "unfinished": True}
            if self.earlier_rounds:
                rounds = read_rounds(self.experiment, **settings)
                study = add_earlier_trials(rounds.own, rounds.earlier_studies).study
            else:
                study = read_study(self.experiment, **settings)
        except NothingToJudge:
            return Reading()
        except Exception as error:
            text = str(error) if isinstance(error, AdvisorError) else f"{type(error).__name__}: {error}"
            return Reading(error=" ".join(redact(text).split()))
        failed = {t.name: t.reason or t.facts.get("error", "") for t in study.trials if t.status == "infeasible"}
        stops = {t.name: read_guard_stop(t.facts.get("stopped")) for t in study.trials if t.status != "complete"}
        stopped = {name: (stop.step, stop.reason) for name, stop in stops.items() if stop is not None}
        running = tuple(
            RunVerdict(
                run_id=v.trial.id,
                trial=v.trial.name,
                state=v.state,
                step=v.step,
                length=v.length if v.length < float("inf") else None,
                stop=v.stop and "continued" not in v.trial.facts and not is_last_step(v.step, v.length),
                message=str(v.message),
            )
            for v in running_verdicts(study)
        )
        return Reading(study.name, running, failed, stopped)

    def to_json(self) -> str:
        """Return the fields as one line of JSON, without the URI, which may hold a password."""
        spec = None if self.spec is None else self.spec.model_dump(mode="json")
        rest = {n: getattr(self, n) for n in ("experiment", "earlier_rounds", "objective", "direction", "interval_s")}
        return json.dumps({**rest, "spec": spec})


class StudyGuard:
    """A separate process that judges the running trials of a study. None of the methods waits for it."""

    def __init__(self, guarded: GuardedStudy) -> None:
        self._guarded = guarded
        # Copy the environment variables now, because other threads may change them later.
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
        self._environment["MLFLOW_TRACKING_URI"] = absolute_uri(guarded.location)
        self._readings: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._start_at, self._pause = 0.0, max(guarded.interval_s, 1.0)

    def latest(self) -> Reading | None:
        """Return the newest `Reading` since the last call, or None. If the process is not running, start it."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        latest = None
        with suppress(queue.Empty):
            while True:
                latest = self._readings.get_nowait()
        return latest

    def _start(self) -> None:
        now = time.monotonic()
        if now < self._start_at:
            return
        self._start_at, self._pause = now + self._pause, min(2 * self._pause, MAX_RESTART_PAUSE_S)
        if self._process is not None:
            self.close()
            self._readings.put(Reading(error="the guard's process ended; starting it again"))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from advisor.execution import guarding; guarding.main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                env=self._environment,
                start_new_session=True,  # Ctrl-C must interrupt only the launcher, not this process
            )
            assert self._process.stdin is not None
            self._process.stdin.write(self._guarded.to_json() + "\n")
            self._process.stdin.flush()
        except OSError as error:
            self._readings.put(Reading(error=f"the guard's process cannot be started: {error.strerror or error}"))
            return
        threading.Thread(target=self._receive_readings, args=(self._process,), name="advisor-guard", daemon=True).start()

    def _receive_readings(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with suppress(OSError, ValueError):  # the pipe to the process is closed
            for line in process.stdout:
                with suppress(ValueError, RecursionError):
                    self._readings.put(_READING_TYPE.validate_python(json.loads(line)))

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        with suppress(OSError):
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


def main() -> None:
    """Judge the study that the first line of standard input names, until standard input is closed."""
    lower_priority()
    request = json.loads(sys.stdin.readline())
    spec = request.pop("spec")
    location = parse_tracking_uri(os.environ["MLFLOW_TRACKING_URI"])
    guarded = GuardedStudy(location=location, spec=None if spec is None else StudySpec.model_validate(spec), **request)
    output, sys.stdout = sys.stdout, sys.stderr  # keep standard output for verdicts, because libraries may print to it

    def exit_with_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    pacer = ReadPacer(guarded.interval_s)
    pause = guarded.interval_s
    while True:
        time.sleep(pause)
        began = time.monotonic()
        line = json.dumps(asdict(guarded.read()))  # ASCII only: standard output may have another encoding than UTF-8
        pause = pacer.pause_s(time.monotonic() - began)
        with suppress(BrokenPipeError):
            print(line, file=output, flush=True)


def lower_priority() -> None:
    """Lower the CPU priority of this process; Windows has no such call."""
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(10)


class WatchedRun:
    def __init__(self, guarded: GuardedStudy, run_id: str) -> None:
        self._location, self._experiment, self._run_id = guarded.location, guarded.experiment, run_id
        self._client: Any = None

    def check(self) -> None:
        """Raise AdvisorError if the experiment does not contain the run; not while the tracking store is unreachable."""
        if self._location.path is not None:
            require_local(self._location)
        with suppress(StoreUnreachableError):
            run = call_mlflow_once(self._read)
            experiment = self._client.get_experiment(run.info.experiment_id)
            if self._experiment not in (experiment.name, experiment.experiment_id):
                raise AdvisorError(f"the run {self._run_id} is of experiment {experiment.name!r}, not {self._experiment!r}")

    def has_ended(self) -> bool:
        """Return whether the run has ended or was deleted; False while the tracking store is unreachable."""
        try:
            info = call_mlflow_once(self._read).info
        except StoreUnreachableError:
            return False
        except CallRejectedError:
            return True
        return bool(info.status not in ("RUNNING", "SCHEDULED") or info.lifecycle_stage != "active")

    def _read(self) -> Any:
        if self._client is None:
            self._client = open_client(replace(self._location, uri=absolute_uri(self._location)))
        return self._client.get_run(self._run_id)
