"""Runs one task to its end inside a Ray actor or a SLURM job, usually on another machine than the launcher."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from advisor.execution.engines import Exit, Task
from advisor.execution.engines.local import start_process
from advisor.execution.engines.process import STOP_GRACE_S
from advisor.model.errors import AdvisorError

_POLL_INTERVAL_S = 0.1
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


def run_task(task: Task, stop_requests: Callable[[], int] = lambda: 0) -> Exit:
    """Run a task to its end; a task that cannot be started counts as failed. stop_requests: function that returns the number of
    stop requests so far."""
    try:
        process = start_process(task)
    except (AdvisorError, OSError) as error:
        return Exit(127, last_line=str(error))
    handled = 0
    with _kill_group_at_exit(process.pid):
        while (exit := process.poll()) is None:
            if handled < stop_requests():
                handled += 1
                process.stop()
            time.sleep(_POLL_INTERVAL_S)
    return exit


@contextmanager
def _kill_group_at_exit(group: int) -> Iterator[None]:
    """Kill the process group when this process ends or is killed, because another node will then restart the job."""
    words = [sys.executable, "-c", _WATCHDOG_CODE, str(group), str(STOP_GRACE_S)]
    watchdog = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watchdog.communicate(b"ended")
