"""Work divided between this process and copies of it, which see all that it holds and send back what they made."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

Result = TypeVar("Result")
_WIDTH = 4
"""Bytes of a number in the pipe from which turns are taken: read and written whole, as the pipe's pages are a multiple."""


def divided(work: Callable[[int], Result], count: int, *, processes: int) -> list[Result]:
    """The results of work(0) to work(count - 1), in this order.

    count: at most 10,000. processes: this one and its copies; fewer where copies cannot be made, and one anywhere but on Linux, as
    elsewhere libraries do not stand it. Whoever is free takes the next number, so the longest work comes first. A copy has none of
    this process's threads and may wait for ever for what one of them had locked: there, `work` must not touch a progress bar. What
    a copy owes, as it was killed or its results cannot be pickled, is made here; an exception of `work` is raised here.
    """
    turns, given = os.pipe()
    os.write(given, b"".join(number.to_bytes(_WIDTH) for number in range(count)))
    os.close(given)  # so that who reads when all are taken sees the end
    copies: list[_Copy[Result]] = []
    try:
        if sys.platform == "linux":
            with suppress(OSError):
                copies.extend(_Copy(work, turns) for _ in range(min(processes, count) - 1))
        results = dict(_taken(work, turns))
        for copy in copies:
            results |= copy.results()
    finally:
        for copy in copies:
            copy.end()
        os.close(turns)
    return [results[number] if number in results else work(number) for number in range(count)]


def _taken(work: Callable[[int], Result], turns: int) -> Iterator[tuple[int, Result]]:
    """Do what nobody has taken yet, one piece after the other."""
    while turn := os.read(turns, _WIDTH):
        number = int.from_bytes(turn)
        yield number, work(number)


class _Copy(Generic[Result]):
    """A copy of this process that takes its turns. Raises OSError where there can be none."""

    def __init__(self, work: Callable[[int], Result], turns: int) -> None:
        self._results, theirs = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self._results)
            os.close(theirs)
            raise
        if not self.pid:
            _serve(work, turns, theirs)
        os.close(theirs)

    def results(self) -> dict[int, Result]:
        """What it made, by number; nothing where it ended before it was done."""
        with open(self._results, "rb", closefd=False) as pipe:
            said = pipe.read()
        with suppress(pickle.UnpicklingError, EOFError):
            made: dict[int, Result] = pickle.loads(said)  # noqa: S301 - of this very program
            return made
        return {}

    def end(self) -> None:
        """End it, whatever it does."""
        os.close(self._results)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _serve(work: Callable[[int], Result], turns: int, results: int) -> None:
    """The life of a copy. It leaves without this process's farewells: open files, handlers and the terminal are not its own."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts ends it
        with open(results, "wb") as pipe:
            pipe.write(pickle.dumps(dict(_taken(work, turns)), pickle.HIGHEST_PROTOCOL))
    finally:
        os._exit(0)
