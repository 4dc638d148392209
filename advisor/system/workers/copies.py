"""Work divided between this process and copies of it, which see all that it holds and send back what they made."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")
_WIDTH = 4
"""Bytes of a number in the pipe from which turns are taken: read and written whole, as the pipe's pages are a multiple."""
_PATIENCE = 10, 60.0
"""How long to wait for copies once all else is done: so many times as long as that took, and so many seconds more."""


def divided(work: Callable[[int], Result], count: int, *, processes: int) -> list[Result]:
    """The results of work(0) to work(count - 1), in this order.

    count: at most 10,000. processes: this one and its copies; fewer where copies cannot be made, and one anywhere but on Linux, as
    elsewhere libraries do not stand it. Whoever is free takes the next number, so the longest work comes first. A copy has none of
    this process's threads and may wait for ever for what one of them had locked: there, `work` must not touch a progress bar. What
    a copy owes, as it was killed, hangs, or cannot send it, is made here; an exception of `work` is raised here.
    """
    began = time.monotonic()
    turns, given = os.pipe()
    os.write(given, b"".join(number.to_bytes(_WIDTH) for number in range(count)))
    os.close(given)  # so that who reads when all are taken sees the end
    ours, life = os.pipe()
    copies: list[_Copy[Result]] = []
    try:
        if sys.platform == "linux":
            with suppress(OSError), _uninterrupted():
                for _ in range(min(processes, count) - 1):
                    copies.append(_Copy(work, turns, ours, life))
        results = dict(_taken(work, turns))
        times, more = _PATIENCE
        until = time.monotonic() + times * (time.monotonic() - began) + more
        for copy in copies:
            results |= copy.results(until)
    finally:
        for copy in copies:
            copy.end()
        for pipe in (turns, ours, life):
            os.close(pipe)
    return [results[number] if number in results else work(number) for number in range(count)]


def _taken(work: Callable[[int], Result], turns: int) -> Iterator[tuple[int, Result]]:
    """Do what nobody has taken yet, one piece after the other."""
    while turn := os.read(turns, _WIDTH):
        number = int.from_bytes(turn)
        yield number, work(number)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Within it Ctrl-C waits, lest a copy be interrupted before it knows that it is one, or nobody know of a copy."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Copy(Generic[Result]):
    """A copy of this process that takes its turns. Raises OSError where there can be none."""

    def __init__(self, work: Callable[[int], Result], turns: int, ours: int, life: int) -> None:
        """ours, life: a pipe into which nobody writes, and which ends when this process does."""
        self._results, theirs = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._results)
            os.close(theirs)
            raise
        if not self._pid:
            os.close(life)
            _serve(work, turns, ours, theirs)
        os.close(theirs)

    def results(self, until: float) -> dict[int, Result]:
        """What it made, by number; nothing where it ended before it was done, or is not done by the time `until`."""
        answer = select.poll()  # `select.select` takes no descriptor beyond 1,023
        answer.register(self._results, select.POLLIN)
        if not answer.poll(max(0.0, 1000 * (until - time.monotonic()))):
            return {}
        with open(self._results, "rb", closefd=False) as pipe, suppress(Exception):  # whatever a pickle may raise
            made: dict[int, Result] = pickle.load(pipe)  # noqa: S301 - of this very program
            return made
        return {}

    def end(self) -> None:
        """End it, whatever it does."""
        os.close(self._results)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(work: Callable[[int], Result], turns: int, ours: int, results: int) -> None:
    """The life of a copy. It leaves without this process's farewells: open files, handlers and the terminal are not its own."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts ends it
        threading.Thread(target=_leave_with, args=(ours,), daemon=True).start()
        # A progress bar may have put itself, with its lock, in their place.
        sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115 - for as long as it lives
        sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")  # noqa: SIM115
        with open(results, "wb") as pipe:
            pipe.write(pickle.dumps(dict(_taken(work, turns)), pickle.HIGHEST_PROTOCOL))
    finally:
        os._exit(0)


def _leave_with(ours: int) -> None:
    """End this process as soon as the one that it is a copy of has ended."""
    os.read(ours, 1)
    os._exit(1)
