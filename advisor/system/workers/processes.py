"""One piece of work after the other in several processes, of which one that dies takes only the piece at hand along."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def usable_cpus() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, jobs: int, died: Callable[[Task, int | None], Result]
) -> Iterator[Result]:
    """The results of `work` on each task, as they come.

    work: a function that can be pickled, as its tasks and results. jobs: processes; fewer where the system grants no more. died:
    makes the result of a task whose process ended under it, given the exit status, -9 for the signal 9; None: there was no process.
    """
    idle: list[_Worker] = []
    busy: dict[Connection, tuple[_Worker, Task]] = {}
    try:
        for task in tasks:
            while len(busy) >= jobs or ((worker := _next(idle)) is None and busy):
                yield from _results(busy, idle, died)
            if worker is None:
                yield died(task, None)
                continue
            try:
                busy[worker.ask(work, task)] = worker, task
            except OSError:
                yield died(task, worker.end())
        while busy:
            while idle:
                idle.pop().end()
            yield from _results(busy, idle, died)
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.end()


class _Worker:
    """A process that works on one task at a time. Raises OSError where there can be none."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit the threads' locks of whoever calls
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, work: Callable[[Task], Any], task: Task) -> Connection:
        """Give it a task; where the result, or the end of the process, will show. Raises OSError where it has ended."""
        self._pipe.send((work, task))
        return self._pipe

    def answer(self) -> Any:
        """The result. Raises EOFError or OSError where the process has ended."""
        return self._pipe.recv()

    def end(self) -> int | None:
        """End the process; the status with which it ended."""
        self._pipe.close()
        self.process.join(0.2)
        self.process.kill()
        self.process.join()
        return self.process.exitcode


def _next(idle: list[_Worker]) -> _Worker | None:
    """Who takes the next task; None where the system grants no process more."""
    if idle:
        return idle.pop()
    with suppress(OSError):
        return _Worker()
    return None


def _results(
    busy: dict[Connection, tuple[_Worker, Task]], idle: list[_Worker], died: Callable[[Task, int | None], Result]
) -> Iterator[Result]:
    """The next results; whose process lives becomes idle."""
    for pipe in wait(list(busy)):
        assert isinstance(pipe, Connection)
        worker, task = busy.pop(pipe)
        try:
            result: Result = worker.answer()
        except (EOFError, OSError):
            result = died(task, worker.end())
        else:
            idle.append(worker)
        yield result


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts ends this process by its pipe
    # The processors are taken by the processes: libraries of linear algebra, which the work imports, use one each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    while True:
        try:
            work, task = pipe.recv()
        except (EOFError, OSError):
            return
        result = work(task)
        try:
            pipe.send(result)
        except OSError:
            return
