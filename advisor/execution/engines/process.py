"""One training as a process: started in a group of its own, watched, stopped with all that it started."""

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

GRACE_S = 10.0
"""How long a process that was asked to stop may take before it is killed."""
_TAIL = 50
_LONGEST = 500
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "cannot allocate memory", "bad_alloc", "memoryerror")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit status; minus the signal's number where one ended it."""
    timed_out: bool = False
    interrupted: bool = False
    said: str = ""
    """The last line of what it printed that is not empty."""
    lost: bool = False
    """Whether nobody knows how, because the machine that it ran on is gone."""

    @property
    def fine(self) -> bool:
        """Whether it ended by itself and well."""
        return self.code == 0 and not (self.timed_out or self.interrupted or self.lost)

    @property
    def reason(self) -> str:
        """In words, for one that is not fine."""
        if self.timed_out:
            return "timeout"
        if self.lost:
            return (
                f"the machine that trained it was lost: {self.said}"
                if self.said
                else "the machine that trained it was lost"
            )
        if out_of_memory(self.said):
            return f"out of memory: {self.said}"
        if self.code == -signal.SIGKILL:
            return "killed, perhaps because memory was out"
        if self.code < 0:
            return f"ended by signal {_signal_name(-self.code)}" + (f": {self.said}" if self.said else "")
        return f"exit status {self.code}" + (f": {self.said}" if self.said else "")


def _signal_name(number: int) -> str:
    """Its number, where it has no name: a real-time signal."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


def out_of_memory(text: str) -> bool:
    """Whether an error's words are of lack of memory."""
    return any(words in text.lower() for words in _OUT_OF_MEMORY)


class Running:
    """A process that runs; its output goes to a file."""

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str], log: Path, timeout_s: float | None = None
    ) -> None:
        self.log, self.started, self._timeout_s = log, time.monotonic(), timeout_s
        self._asked: float | None = None
        self._why = ""
        with log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    start_new_session=True,  # Ctrl-C is ours to hand on, and what it starts can be stopped with it
                )
            except OSError as error:
                raise AdvisorError(f"cannot run {words[0]!r}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def stop(self, why: str = "interrupted") -> None:
        """Ask it and what it started to stop; killed if they take longer than `GRACE_S`, or at once when asked again."""
        if self._asked is not None:
            self._signal(signal.SIGKILL)
            return
        self._asked, self._why = time.monotonic(), why
        self._signal(signal.SIGINT if why == "interrupted" else signal.SIGTERM)

    def poll(self) -> Ended | None:
        """How it ended; None while it runs. Stops it when its time is up."""
        code = self._process.poll()
        now = time.monotonic()
        if code is None:
            if self._asked is None and self._timeout_s is not None and now - self.started > self._timeout_s:
                self.stop("timeout")
            elif self._asked is not None and now - self._asked > GRACE_S:
                self._signal(signal.SIGKILL)
            return None
        self._signal(signal.SIGTERM)  # loaders' workers and the like that it left behind
        return Ended(code, self._why == "timeout", self._why == "interrupted", last_line(self.log))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # all of them have ended
            os.killpg(self._process.pid, number)


def named(pid: int) -> dict[str, float]:
    """A training's process as claims name it: its number and when it began, which no other process shares."""
    try:
        return {"training": pid, "training_began": psutil.Process(pid).create_time()}
    except psutil.Error:
        return {"training": pid, "training_began": 0.0}


def last_line(log: Path) -> str:
    """The last line of a log that says something, cut to a bearable length; errors are said last by most programs.

    It goes into the record, where others read it, so it is without credentials.
    """
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
        lines = deque((line.decode(errors="replace").strip() for line in file), maxlen=_TAIL)
    return next((redact(line)[:_LONGEST] for line in reversed(lines) if line), "")
