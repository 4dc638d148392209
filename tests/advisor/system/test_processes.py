"""Tasks in several processes, some of which crash or cannot be started."""

import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil

from advisor.system.processes import map_in_processes


def _work(task):
    if task == "raises":
        raise OSError("no such disk")
    if task == "crashes":
        os._exit(7)
    return task.upper()


def _failed(task, error):
    return f"{task}: {type(error).__name__}"


@contextmanager
def _no_more_files():
    """No file can be opened inside, so no process can be started."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_file = os.open(os.devnull, os.O_RDONLY)
    os.close(next_file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_crash_or_an_exception_fails_only_its_own_task():
    results = [*map_in_processes(_work, ["a", "raises", "crashes", "b"], jobs=1, failed=_failed)]
    assert results == ["A", "raises: OSError", "crashes: BrokenProcessPool", "B"]


def test_if_no_process_can_be_started_every_task_fails():
    with _no_more_files():
        results = [*map_in_processes(_work, ["a", "b"], jobs=2, failed=_failed)]
    assert results == ["a: OSError", "b: OSError"]


def test_if_no_more_processes_can_be_started_the_running_ones_do_the_work():
    def tasks():
        yield "a"
        with _no_more_files():
            yield "b"

    assert [*map_in_processes(_work, tasks(), jobs=2, failed=_failed)] == ["A", "B"]


def _pid(_):
    return os.getpid()


def test_processes_are_reused():
    assert len({*map_in_processes(_pid, range(6), jobs=2, failed=_failed)}) <= 2


ABANDONED = """
import multiprocessing, os, signal, sys, time
from advisor.system.processes import map_in_processes
results = map_in_processes(time.sleep, [0, 600, 600], jobs=2, failed=None)
next(results)
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
results.close()
"""


def test_processes_end_with_the_iteration_and_with_their_parent():
    for how in ("leave", "kill"):
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", ABANDONED, how], capture_output=True, text=True, check=False)
        pids = [int(pid) for pid in done.stdout.split()]
        assert pids, done.stderr
        while any(psutil.pid_exists(pid) for pid in pids):
            assert time.monotonic() - began < 60
            time.sleep(0.1)
