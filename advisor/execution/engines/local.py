"""Runs training processes on this machine, for the launcher, a Ray actor or a SLURM job."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from advisor.execution.engines import Exit, Task
from advisor.execution.engines.process import STOP_GRACE_S, TrainingProcess, process_identity
from advisor.model.errors import AdvisorError, convert_write_errors
from advisor.system.atomic import write_files

_WATCHDOG_CODE = """
import os, signal, sys, time
if not sys.stdin.buffer.read():
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(int(sys.argv[1]), number)
        except ProcessLookupError:
            break
        time.sleep(float(sys.argv[2]))
"""


class LocalEngine:
    """Engine with process slots, each with its own environment variables, such as the GPU to use."""

    def __init__(self, slots: Sequence[Mapping[str, str]]) -> None:
        self._free = list(reversed(slots))

    def room(self) -> int:
        return len(self._free)

    def start(self, tasks: Sequence[Task]) -> Sequence[LocalTraining]:
        """Start each task in a free process slot. If a task cannot be started, stop the processes that were already started."""
        started: list[LocalTraining] = []
        try:
            for task in tasks:
                slot = self._free.pop()
                started.append(LocalTraining(task, slot, self._free))
        except BaseException:
            for training in started:
                training.stop()
                training.stop()
            raise
        return started

    def close(self) -> None:
        """Do nothing; this engine holds no resources."""


class LocalTraining:
    """A training process that occupies one slot."""

    def __init__(self, task: Task, slot: Mapping[str, str], free: list[Mapping[str, str]]) -> None:
        self._slot, self._free, self._freed = slot, free, False
        try:
            self._process = start_process(replace(task, environment={**task.environment, **slot}))
        except BaseException:
            free.append(slot)
            raise

    def poll(self) -> Exit | None:
        """Return how the process ended and free its slot, or None while it runs."""
        exit = self._process.poll()
        if exit is not None and not self._freed:
            self._freed = True
            self._free.append(self._slot)
        return exit

    def stop(self) -> None:
        self._process.stop()

    def note(self) -> Mapping[str, Any]:
        return process_identity(self._process.pid)


def start_process(task: Task) -> TrainingProcess:
    """Write the task's hyperparameters to a file, and start its process. Raises AdvisorError if one of these fails."""
    with convert_write_errors(task.log.parent):
        task.params_file.parent.mkdir(parents=True, exist_ok=True)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        # The file need not survive a power failure, because a restarted training writes a new file.
        write_files({task.params_file: task.params_json}, durable=False, sweeps=False)
        return TrainingProcess(task.words, task.environment, task.log, task.timeout_s)


def run_task(task: Task, stop_requests: Callable[[], int] = lambda: 0) -> Exit:
    """Run a task to its end inside a Ray actor or SLURM job; a task that cannot be started counts as failed. stop_requests:
    function that returns the number of stop requests so far."""
    try:
        process = start_process(task)
    except (AdvisorError, OSError) as error:
        return Exit(127, last_line=str(error))
    handled = 0
    # If this process is killed, the watchdog kills the process group, because another node will then restart the job.
    words = [sys.executable, "-c", _WATCHDOG_CODE, str(process.pid), str(STOP_GRACE_S)]
    watchdog = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    try:
        while (exit := process.poll()) is None:
            if handled < stop_requests():
                handled += 1
                process.stop()
            time.sleep(0.1)
    finally:
        watchdog.communicate(b"ended")
    return exit
