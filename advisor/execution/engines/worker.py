"""One training from start to end, where the launcher is not: what Ray's actors and SLURM's jobs run on their node."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from advisor.execution.engines import Task
from advisor.execution.engines.local import begin
from advisor.execution.engines.process import GRACE_S, Ended
from advisor.model.errors import AdvisorError

_PAUSE_S = 0.1
_WATCH = """
import os, signal, sys, time
if not sys.stdin.buffer.read():
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(int(sys.argv[1]), number)
        except ProcessLookupError:
            break
        time.sleep(float(sys.argv[2]))
"""


def train(task: Task, asked: Callable[[], int] = lambda: 0) -> Ended:
    """Run the task to its end; `asked` tells how often it was asked to stop. A command that cannot be run has failed."""
    try:
        running = begin(task)
    except (AdvisorError, OSError) as error:
        return Ended(127, said=str(error))
    heard = 0
    with _bound(running.pid):
        while (ended := running.poll()) is None:
            if heard < asked():
                heard += 1
                running.stop()
            time.sleep(_PAUSE_S)
    return ended


@contextmanager
def _bound(group: int) -> Iterator[None]:
    """Within it, a process group ends with this process, however that ends: its job is begun anew elsewhere."""
    words = [sys.executable, "-c", _WATCH, str(group), str(GRACE_S)]
    watch = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watch.communicate(b"ended")
