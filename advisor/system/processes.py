"""Tasks spread over processes of this machine; a process that crashes fails only the task it was working on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import wait as wait_for_exit
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def usable_cpus() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_processes(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int,
    failed: Callable[[Task, BaseException], Result],
) -> Iterator[Result]:
    """Yield `work(task)` for each task in order of completion, computed by up to `jobs` processes.

    work: must be picklable, like its tasks and results. failed: makes the result of a task that raised, whose process ended
    (BrokenProcessPool) or could not be started (OSError). Fewer processes are used if the system refuses to start more.
    """
    before = set(multiprocessing.active_children())
    idle: list[ProcessPoolExecutor] = []
    running: dict[Future[Result], tuple[ProcessPoolExecutor, Task]] = {}
    try:
        for task in tasks:
            if len(running) >= jobs:
                yield from _completed(running, idle, failed)
            while True:
                try:
                    # One process per pool: a broken pool then says which task broke it, and concerns no other task.
                    pool = idle.pop() if idle else _new_pool()
                    running[pool.submit(work, task)] = pool, task
                    break
                except OSError as error:
                    if not running:
                        yield failed(task, error)
                        break
                    yield from _completed(running, idle, failed)
        while running:
            yield from _completed(running, idle, failed)
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        for pool in (*idle, *(pool for pool, _ in running.values())):
            pool.shutdown(cancel_futures=True)


def _completed(
    running: dict[Future[Result], tuple[ProcessPoolExecutor, Any]],
    idle: list[ProcessPoolExecutor],
    failed: Callable[[Any, BaseException], Result],
) -> Iterator[Result]:
    """Wait for the next results and return their processes to `idle`, unless they are broken."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        pool, task = running.pop(future)
        error = future.exception()
        if error is None:
            idle.append(pool)
        else:
            pool.shutdown(wait=False)
        yield future.result() if error is None else failed(task, error)


def _new_pool() -> ProcessPoolExecutor:
    # Spawned, because a fork would inherit the locks of its parent's threads.
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_initialize)


def _initialize() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes itself
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes already occupy all processors
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """A parent that is killed cannot end its processes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for_exit([parent.sentinel])
    os._exit(1)
