"""One piece of work after the other in several processes, of which one that dies takes only the piece at hand along."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
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

    work: a function that can be pickled, as its tasks and results. died: makes the result of a task whose process ended under it,
    given the exit status, -9 for the signal 9.
    """
    left = iter(tasks)
    busy: dict[Connection, tuple[_Worker, Task]] = {}
    try:
        for task in left:
            worker = _Worker(work)
            busy[worker.ask(task)] = worker, task
            if len(busy) == jobs:
                break
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                worker, task = busy.pop(pipe)
                result, worker = _result(worker, task, work, died)
                yield result
                if (following := next(left, None)) is not None:
                    busy[worker.ask(following)] = worker, following
                else:
                    worker.end()
    finally:
        for worker, _ in busy.values():
            worker.end()


class _Worker:
    """A process that works on one task at a time."""

    def __init__(self, work: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would inherit the threads' locks of whoever calls
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self._pipe.send(work)

    def ask(self, task: object) -> Connection:
        """Give it a task; where the result, or the end of the process, will show."""
        self._pipe.send(task)
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


def _result(
    worker: _Worker, task: Task, work: Callable[[Task], Result], died: Callable[[Task, int | None], Result]
) -> tuple[Result, _Worker]:
    """The result of the task, and who takes the next one: another process where this one died."""
    try:
        return worker.answer(), worker
    except (EOFError, OSError):
        return died(task, worker.end()), _Worker(work)


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts ends this process by its pipe
    # The processors are taken by the processes: libraries of linear algebra, which are imported by the next line, use one each.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        work = pipe.recv()
        while True:
            pipe.send(work(pipe.recv()))
    except (EOFError, OSError):
        return
