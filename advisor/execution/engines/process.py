"""Runs a training process in its own process group, so that stopping it also stops all processes that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError
from advisor.system.processes import KILL_SIGNAL, signal_process_group

STOP_GRACE_S = 10.0
"""Seconds from a stop request to the kill of the training process."""
LEFTOVER_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for processes that a training process left behind."""
_MAX_TAIL_LINES = 50
_MAX_LINE_CHARS = 500
_OUT_OF_MEMORY_PHRASES = ("out of memory", "outofmemory", "cannot allocate memory", "bad_alloc", "memoryerror")


@dataclass(frozen=True, slots=True)
class Exit:
    """A description of how a training process ended."""

    code: int
    """Exit status of the training process. A negative status is the number of the signal that ended the process, with a minus
    sign."""
    timed_out: bool = False
    interrupted: bool = False
    last_line: str = ""
    """Last non-empty line of the training process's output."""
    lost: bool = False
    """True if the exit status is unknown, because the machine failed or was removed from the cluster."""

    @property
    def ok(self) -> bool:
        """True if the training process ended by itself with exit status 0."""
        return self.code == 0 and not (self.timed_out or self.interrupted or self.lost)

    @property
    def reason(self) -> str:
        """Return why the training process failed, as text for messages."""
        detail = f": {self.last_line}" if self.last_line else ""
        if self.timed_out:
            return "timeout"
        if self.lost:
            return f"its machine failed or was removed{detail}"
        if is_out_of_memory(self.last_line):
            return f"out of memory{detail}"
        if self.code == -KILL_SIGNAL:
            return "killed, perhaps because memory ran out"
        if self.code < 0:
            return f"ended by signal {_signal_name(-self.code)}{detail}"
        return f"exit status {self.code}{detail}"


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return str(number)  # real-time signals have no names


def is_out_of_memory(text: str) -> bool:
    """Return True if an error message says that memory ran out."""
    return any(words in text.lower() for words in _OUT_OF_MEMORY_PHRASES)


class TrainingProcess:
    """A running training process, whose output goes to a file."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path, timeout_s: float | None = None) -> None:
        self.log, self.started, self._timeout_s = log, time.monotonic(), timeout_s
        self._stopped_at: float | None = None
        self._stop_reason = ""
        self._exited_at: float | None = None
        with log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,  # the launcher forwards Ctrl-C and stops the whole group
                )
            except OSError as error:
                raise AdvisorError(f"cannot run {words[0]!r}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """Process id (PID)."""
        return self._process.pid

    def stop(self, reason: str = "interrupted") -> None:
        """Ask the process group to stop. The process group is killed after `STOP_GRACE_S` seconds, or immediately at the second
        call."""
        if self._stopped_at is not None:
            self._signal_processes(KILL_SIGNAL)
            return
        self._stopped_at, self._stop_reason = time.monotonic(), reason
        self._signal_processes(signal.SIGINT if reason == "interrupted" else signal.SIGTERM)

    def poll(self) -> Exit | None:
        """Return how the training process ended; None while this process, or any process that it started, still runs.

        Also stop the process when its time limit expires. Processes that outlive the training process, such as data loader
        workers, are first asked to stop and then killed after `LEFTOVER_GRACE_S` seconds, because they may hold GPU memory.
        """
        code = self._process.poll()
        now = time.monotonic()
        if code is None:
            if self._stopped_at is None and self._timeout_s is not None and now - self.started > self._timeout_s:
                self.stop("timeout")
            elif self._stopped_at is not None and now - self._stopped_at > STOP_GRACE_S:
                self._signal_processes(KILL_SIGNAL)
            return None
        if self._exited_at is None:
            self._exited_at = now
            self._signal_processes(signal.SIGTERM)
        if self._has_leftovers():
            if now - self._exited_at <= LEFTOVER_GRACE_S:
                return None
            self._signal_processes(KILL_SIGNAL)
        return Exit(code, self._stop_reason == "timeout", self._stop_reason == "interrupted", last_line(self.log))

    def _has_leftovers(self) -> bool:
        """Return whether any other process of the process group still runs. Zombie processes do not count, because a container
        may never remove them."""
        if not hasattr(os, "killpg"):
            return False
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return any(_is_in_group(process, self._process.pid) for process in psutil.process_iter())

    def _signal_processes(self, number: signal.Signals) -> None:
        signal_process_group(self._process.pid, number)


def _is_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):  # the process has ended or belongs to another user
        return False


def process_identity(pid: int) -> dict[str, float]:
    """Return the id and the start time of a process, which together identify it. A process id alone may be reused by a later
    process."""
    try:
        return {"training": pid, "training_began": psutil.Process(pid).create_time()}
    except psutil.Error:
        return {"training": pid, "training_began": 0.0}


MLFLOW_ERROR_ADVICE = {
    "active experiment ID does not match environment run ID": (
        "the script calls mlflow.set_experiment; remove the call, because the launcher chooses the experiment"
    ),
    "Changing param values is not allowed": (
        "the script logs another value of a hyperparameter than the study gives it; pass it in the command, as in --lr {lr}"
    ),
}
"""MLflow errors that a training script causes only when a launcher runs it. The keys are parts of the errors' texts; the values
are advice for the user."""


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log. It is shortened and contains no credentials, because other users can see it in
    MLflow.

    If this line contains a common MLflow error (`MLFLOW_ERROR_ADVICE`), return the advice for the error instead.
    """
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
        lines = deque((line.decode(errors="replace").strip() for line in file), maxlen=_MAX_TAIL_LINES)
    known = next((advice for text, advice in MLFLOW_ERROR_ADVICE.items() for line in lines if text in line), None)
    if known is not None:
        return known
    return next((redact(line)[:_MAX_LINE_CHARS] for line in reversed(lines) if line), "")
