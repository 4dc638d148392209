"""Distributes tasks over several processes on this machine. If a process crashes, only the task that it was working on fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from multiprocessing.connection import wait as wait_for_exit
from typing import Any, TypeVar

import psutil

Task = TypeVar("Task")
Result = TypeVar("Result")


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


KILL_SIGNAL = getattr(signal, "SIGKILL", signal.SIGTERM)
"""Signal that no process can ignore; SIGTERM on Windows."""


def signal_process_group(leader: int, number: int) -> None:
    """Send a signal to the process group of `leader`. On Windows, kill the process and its children."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # all processes of the group have already exited
            os.killpg(leader, number)
        return
    with suppress(psutil.Error):
        process = psutil.Process(leader)
        for one in (*process.children(recursive=True), process):
            with suppress(psutil.Error):
                one.kill()


def map_in_processes(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, jobs: int, failed: Callable[[Task, BaseException], Result]
) -> Iterator[Result]:
    """Yield `work(task)` for each task, in up to `jobs` processes, in order of completion. All must be picklable. failed:
    returns the result for a task that raised an exception, or whose process ended (BrokenProcessPool) or failed to start
    (OSError). If the system limits the number of processes, fewer run."""
    earlier_children = set(multiprocessing.active_children())
    idle_pools: list[ProcessPoolExecutor] = []
    running: dict[Future[Result], tuple[ProcessPoolExecutor, Task]] = {}
    try:
        for task in tasks:
            if len(running) >= jobs:
                yield from _yield_completed(running, idle_pools, failed)
            while True:
                try:
                    # With one process per pool, a broken pool identifies the task that failed and does not affect other tasks.
                    # A forked process would inherit locks that threads of its parent hold, so spawn it.
                    spawn_context = multiprocessing.get_context("spawn")
                    pool = idle_pools.pop() if idle_pools else ProcessPoolExecutor(1, spawn_context, _initialize_worker)
                    running[pool.submit(work, task)] = pool, task
                    break
                except OSError as error:
                    if not running:
                        yield failed(task, error)
                        break
                    yield from _yield_completed(running, idle_pools, failed)
        while running:
            yield from _yield_completed(running, idle_pools, failed)
    finally:
        for process in set(multiprocessing.active_children()) - earlier_children:
            process.kill()
        for pool in (*idle_pools, *(pool for pool, _ in running.values())):
            pool.shutdown(cancel_futures=True)


def _yield_completed(
    running: dict[Future[Result], tuple[ProcessPoolExecutor, Any]],
    idle: list[ProcessPoolExecutor],
    failed: Callable[[Any, BaseException], Result],
) -> Iterator[Result]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        pool, task = running.pop(future)
        error = future.exception()
        if error is None:
            idle.append(pool)
        else:
            pool.shutdown(wait=False)
        yield future.result() if error is None else failed(task, error)


def _initialize_worker() -> None:
    def exit_with_parent() -> None:  # a parent that was killed cannot stop its children
        parent = multiprocessing.parent_process()
        assert parent is not None
        wait_for_exit([parent.sentinel])
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, but the parent stops its children itself
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread, because the processes already use all CPUs
    threading.Thread(target=exit_with_parent, daemon=True).start()
