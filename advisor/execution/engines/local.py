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
    """Engine with process slots, each with its own environment variables, such as the GPU to use."""

    def __init__(self, slots: Sequence[Mapping[str, str]]) -> None:
        self._slots = slots
        self._trainings: dict[int, TrainingProcess] = {}

    def _free_slots(self) -> list[int]:
        running = {i for i, training in self._trainings.items() if not training.ended}
        return [i for i in range(len(self._slots)) if i not in running]

    def room(self) -> int:
        return len(self._free_slots())

    def start(self, tasks: Sequence[Task]) -> Sequence[TrainingProcess]:
        """Start each task in a free process slot. If a task cannot be started, stop the processes that were already started."""
        started: dict[int, TrainingProcess] = {}
        try:
            for i, task in zip(self._free_slots(), tasks, strict=False):
                started[i] = start_process(replace(task, environment={**task.environment, **self._slots[i]}))
        except BaseException:
            for training in started.values():
                training.stop()
                training.stop()
            raise
        self._trainings |= started
        return list(started.values())

    def close(self) -> None:
        """Do nothing; this engine holds no resources."""


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
