"""Trainings as processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.execution.engines import Task
from advisor.execution.engines.process import Ended, Running, named
from advisor.model.errors import AdvisorError
from advisor.system.atomic import write


class Local:
    """Processes in a number of places, each with an environment of its own, such as the GPU that it hands out."""

    def __init__(self, places: Sequence[Mapping[str, str]]) -> None:
        self._free = list(reversed(places))

    def room(self) -> int:
        """Places that nobody trains in."""
        return len(self._free)

    def start(self, tasks: Sequence[Task]) -> Sequence[LocalTraining]:
        """Start each in a free place; all of them, or none."""
        started: list[LocalTraining] = []
        try:
            for task in tasks:
                started.append(self._start(task))
        except BaseException:
            for one in started:
                one.stop()
                one.stop()
            raise
        return started

    def _start(self, task: Task) -> LocalTraining:
        place = self._free.pop()
        try:
            running = begin(replace(task, environment={**task.environment, **place}))
        except BaseException:
            self._free.append(place)
            raise
        return LocalTraining(running, lambda: self._free.append(place))

    def close(self) -> None:
        """Nothing is held."""


class LocalTraining:
    """A process in its place."""

    def __init__(self, running: Running, leave: Any) -> None:
        self._running, self._leave = running, leave
        self._left = False

    def poll(self) -> Ended | None:
        """How it ended; the place is free from then on."""
        ended = self._running.poll()
        if ended is not None and not self._left:
            self._left = True
            self._leave()
        return ended

    def stop(self) -> None:
        """Ctrl-C; the second time, kill."""
        self._running.stop()

    def note(self) -> Mapping[str, Any]:
        """The process."""
        return named(self._running.pid)


def begin(task: Task) -> Running:
    """The task's process on this machine, with the file that its words may name. Raises AdvisorError."""
    try:
        task.file.parent.mkdir(parents=True, exist_ok=True)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        # A folder of many trials is swept once, by the launcher; a training that a power cut ended is given its file anew.
        write({task.file: task.text}, durable=False, sweeps=False)
        return Running(task.words, task.environment, task.log, task.timeout_s)
    except OSError as error:
        raise not_written(task.log.parent, error) from None


def not_written(folder: Path, error: OSError) -> AdvisorError:
    """What to say where output has no place."""
    return AdvisorError(f"cannot write to {str(folder)!r}: {error.strerror or error}; give another folder by --out")
