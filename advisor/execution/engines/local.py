"""Runs training processes on this machine, for the launcher, a Ray actor or a SLURM job."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from advisor.execution.engines import Exit, Task
from advisor.execution.engines.process import STOP_GRACE_S, TrainingProcess
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
    """Engine on this machine. Each slot runs one process at a time with its own environment variables."""

    def __init__(self, slots: Sequence[Mapping[str, str]]) -> None:
        self._slots = slots
        self._trainings: dict[int, TrainingProcess] = {}

    def _free_slots(self) -> list[int]:
        used_slots = {i for i, training in self._trainings.items() if not training.ended}
        return [i for i in range(len(self._slots)) if i not in used_slots]

    def free_capacity(self) -> int:
        return len(self._free_slots())

    def start(self, tasks: Sequence[Task]) -> Sequence[TrainingProcess]:
        """Start each task in a free process slot. If a task cannot be started, stop the processes that were already started."""
        started_by_slot: dict[int, TrainingProcess] = {}
        try:
            for i, task in zip(self._free_slots(), tasks, strict=False):
                started_by_slot[i] = start_process(replace(task, environment={**task.environment, **self._slots[i]}))
        except BaseException:
            for training in started_by_slot.values():
                training.stop()
                training.stop()
            raise
        self._trainings |= started_by_slot
        return list(started_by_slot.values())

    def close(self) -> None:
        """Do nothing; this engine holds no resources."""


def start_process(task: Task) -> TrainingProcess:
    """Write the task's hyperparameters to a file, and start the task's process. Raises AdvisorError if the file cannot be
    written or the process cannot be started."""
    with convert_write_errors(task.log.parent):
        task.params_file.parent.mkdir(parents=True, exist_ok=True)
        task.log.parent.mkdir(parents=True, exist_ok=True)
        # The file need not survive a power failure, because a restarted training writes a new file.
        write_files({task.params_file: task.params_json}, durable=False, sweeps=False)
        return TrainingProcess(task.command, task.environment, task.log, task.timeout_s)


def run_task(task: Task, stop_requests: Callable[[], int] = lambda: 0) -> Exit:
    """Run a task to its end, inside a Ray actor or a SLURM job. A task that cannot be started counts as failed. stop_requests:
    function that returns the number of stop requests so far."""
    try:
        process = start_process(task)
    except (AdvisorError, OSError) as error:
        return Exit(127, last_line=str(error))
    handled_requests = 0
    # If this process is killed, another node restarts the job, so the watchdog kills the process group of the training here.
    words = [sys.executable, "-c", _WATCHDOG_CODE, str(process.pid), str(STOP_GRACE_S)]
    watchdog = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    try:
        while (exit := process.poll()) is None:
            if handled_requests < stop_requests():
                handled_requests += 1
                process.stop()
            time.sleep(0.1)
    finally:
        watchdog.communicate(b"ended")
    return exit
