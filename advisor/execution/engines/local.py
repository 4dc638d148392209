"""Runs training processes on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from advisor.execution.engines import Task
from advisor.execution.engines.process import Exit, TrainingProcess, process_identity
from advisor.model.errors import convert_write_errors
from advisor.system.atomic import write_files


class LocalEngine:
    """Engine with a fixed number of process slots, each with its own environment variables, such as the GPU to use."""

    def __init__(self, slots: Sequence[Mapping[str, str]]) -> None:
        self._free = list(reversed(slots))

    def room(self) -> int:
        return len(self._free)

    def start(self, tasks: Sequence[Task]) -> Sequence[LocalTraining]:
        """Start each task in a free process slot. If a task cannot be started, stop the processes that were already started."""
        started: list[LocalTraining] = []
        try:
            for task in tasks:
                started.append(self._start_in_free_slot(task))
        except BaseException:
            for training in started:
                training.stop()
                training.stop()
            raise
        return started

    def _start_in_free_slot(self, task: Task) -> LocalTraining:
        slot = self._free.pop()
        try:
            process = start_process(replace(task, environment={**task.environment, **slot}))
        except BaseException:
            self._free.append(slot)
            raise
        return LocalTraining(process, lambda: self._free.append(slot))

    def close(self) -> None:
        """Do nothing; this engine holds no resources."""


class LocalTraining:
    """A training process that occupies one slot."""

    def __init__(self, process: TrainingProcess, free_slot: Callable[[], None]) -> None:
        self._process, self._free_slot = process, free_slot
        self._freed = False

    def poll(self) -> Exit | None:
        """Return how the process ended and free its slot; return None while the process runs."""
        exit = self._process.poll()
        if exit is not None and not self._freed:
            self._freed = True
            self._free_slot()
        return exit

    def stop(self) -> None:
        """Ask the process to stop, as Ctrl-C does. A second call kills the process."""
        self._process.stop()

    def note(self) -> Mapping[str, Any]:
        """Return the process's id and start time, by which other launchers recognise the process."""
        return process_identity(self._process.pid)


def start_process(task: Task) -> TrainingProcess:
    """Write the file with the task's hyperparameters, and start the process of the task on this machine. Raises AdvisorError if
    the file cannot be written or the process cannot be started."""
    with convert_write_errors(task.log.parent):
        task.params_file.parent.mkdir(parents=True, exist_ok=True)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        # The file need not survive a power failure, because a restarted training writes a new file.
        write_files({task.params_file: task.params_json}, durable=False, sweeps=False)
        return TrainingProcess(task.words, task.environment, task.log, task.timeout_s)
