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
"""Seconds from a request to stop a training process until the process is killed."""
LEFTOVER_GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL for processes that a training process left behind."""
_MAX_TAIL_LINES = 50
_MAX_LINE_CHARS = 500
_OUT_OF_MEMORY_PHRASES = ("out of memory", "outofmemory", "cannot allocate memory", "bad_alloc", "memoryerror")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a training process ended."""

    code: int
    """Exit status of the process. A negative exit status is minus the number of the signal that ended the process."""
    timed_out: bool = False
    interrupted: bool = False
    last_line: str = ""
    lost: bool = False
    """True if the exit status is unknown, because the machine failed or was removed from the cluster."""

    @property
    def ok(self) -> bool:
        return self.code == 0 and not (self.timed_out or self.interrupted or self.lost)

    @property
    def reason(self) -> str:
        last_line_text = f": {self.last_line}" if self.last_line else ""
        if self.timed_out:
            return "timeout"
        if self.lost:
            return f"the machine failed or was removed{last_line_text}"
        if is_out_of_memory(self.last_line):
            return f"out of memory{last_line_text}"
        if self.code == -KILL_SIGNAL:
            return "killed, perhaps because memory ran out"
        if self.code < 0:
            name = str(-self.code)  # real-time signals have no names
            with suppress(ValueError):
                name = signal.Signals(-self.code).name
            return f"ended by signal {name}{last_line_text}"
        return f"exit status {self.code}{last_line_text}"


def is_out_of_memory(text: str) -> bool:
    return any(words in text.lower() for words in _OUT_OF_MEMORY_PHRASES)


class TrainingProcess:
    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path, timeout_s: float | None = None) -> None:
        self._log, self._started, self._timeout_s = log, time.monotonic(), timeout_s
        self._stopped_at: float | None = None
        self._stop_reason = ""
        self._exited_at: float | None = None
        self.ended = False
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
        return self._process.pid

    def stop(self, reason: str = "interrupted") -> None:
        """Ask the process group to stop. The group is killed after `STOP_GRACE_S` seconds, or at the second call."""
        if self._stopped_at is not None:
            signal_process_group(self.pid, KILL_SIGNAL)
            return
        self._stopped_at, self._stop_reason = time.monotonic(), reason
        signal_process_group(self.pid, signal.SIGINT if reason == "interrupted" else signal.SIGTERM)

    def poll(self) -> Exit | None:
        """Return how the training process ended; None while it, or a process that it started, still runs.

        Also stop it at its time limit. Processes that outlive it, such as data loader workers, may hold GPU memory, so they are
        stopped and then killed.
        """
        code = self._process.poll()
        now = time.monotonic()
        if code is None:
            if self._stopped_at is None and self._timeout_s is not None and now - self._started > self._timeout_s:
                self.stop("timeout")
            elif self._stopped_at is not None and now - self._stopped_at > STOP_GRACE_S:
                signal_process_group(self.pid, KILL_SIGNAL)
            return None
        if self._exited_at is None:
            self._exited_at = now
            signal_process_group(self.pid, signal.SIGTERM)
        if self._has_leftovers():
            if now - self._exited_at <= LEFTOVER_GRACE_S:
                return None
            signal_process_group(self.pid, KILL_SIGNAL)
        self.ended = True
        return Exit(code, self._stop_reason == "timeout", self._stop_reason == "interrupted", last_line(self._log))

    def claim_details(self) -> dict[str, float]:
        return process_identity(self.pid)

    def _has_leftovers(self) -> bool:
        """Return whether another process of the group still runs. Zombies do not count: a container may keep them."""
        if not hasattr(os, "killpg"):
            return False
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):  # the process has ended or belongs to another user
                if os.getpgid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    return True
        return False


def process_identity(pid: int) -> dict[str, float]:
    """Return the id and the start time of a process. A later process may have the same id."""
    try:
        return {"training": pid, "training_began": psutil.Process(pid).create_time()}
    except psutil.Error:
        return {"training": pid, "training_began": 0.0}


MLFLOW_ERROR_ADVICE = {
    "active experiment ID does not match environment run ID": (
        "the script calls mlflow.set_experiment; remove the call, because the launcher chooses the experiment"
    ),
    "Changing param values is not allowed": (
        "the script logs another value of a hyperparameter than the study sets; pass the value in the command: --lr {lr}"
    ),
}
"""Advice on MLflow errors that occur only when a launcher runs the training script. Keys: parts of messages."""


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log, or advice if the log contains a common MLflow error. The line is shortened and
    contains no credentials, because other users can see it in MLflow."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
        lines = deque((line.decode(errors="replace").strip() for line in file), maxlen=_MAX_TAIL_LINES)
    known_advice = next((advice for text, advice in MLFLOW_ERROR_ADVICE.items() for line in lines if text in line), None)
    if known_advice is not None:
        return known_advice
    return next((redact(line)[:_MAX_LINE_CHARS] for line in reversed(lines) if line), "")
