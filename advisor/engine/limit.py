"""Runs each rule in its own thread and stops a rule that does not end, so that the verdicts of other rules are not lost."""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_RULE_CPU_S = 300.0
"""Maximum processor seconds of one rule, explained in docs/decisions.md."""
MAX_WAIT_S = 1800
"""Maximum wall-clock time of one rule, in seconds; it limits rules that wait, for example for a server."""
MAX_STOP_WAIT_S = 2.0
"""Maximum seconds to wait until a stopped rule ends; after that, its thread continues in the background without a result."""

_stopped_rules: set[str] = set()
"""Ids of the rules that were stopped in this process. They are not started again."""


def forget_stopped_rules() -> None:
    _stopped_rules.clear()


class TooLongError(Exception):
    """Raised if a rule does not end. The message completes "The rule was stopped: it …"."""


class _RuleTimeout(SystemExit):
    """Ends the thread of a rule without a traceback; `except Exception` does not catch it."""


class _ThreadedCall(threading.Thread, Generic[T]):
    """A function call in its own thread; the object keeps the result or the error of the call."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._work, self._context = work, contextvars.copy_context()
        self._clock: int | None = None
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._end_lock, self._ended = threading.Lock(), False

    def run(self) -> None:
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            self._result.append(self._context.run(self._work))
        except BaseException as error:
            self._error = error
        finally:
            with self._end_lock:
                self._ended = True

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result[0]

    def cpu_s(self) -> float:
        """Return the processor seconds of the thread; 0 on systems without per-thread clocks (macOS, Windows). Without a clock,
        only the wall-clock limit applies, because the processor time of the process includes other threads."""
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # thread has just ended
            return 0.0

    def stop(self) -> None:
        """Raise an exception in the thread, and a second one if the rule catches the first. Between the two exceptions,
        `finally` blocks of the rule can finish."""
        for _ in range(2):
            self._raise_in_thread()
            self.join(MAX_STOP_WAIT_S / 2)

    def _raise_in_thread(self) -> None:
        """Raise `_RuleTimeout` in the thread if it is still running. The lock prevents the thread from ending during this call:
        a new thread could get its identifier and be stopped instead."""
        if not self._end_lock.acquire(timeout=MAX_STOP_WAIT_S):
            return
        try:
            if self.is_alive() and not self._ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(_RuleTimeout))
        finally:
            self._end_lock.release()


def run_with_limits(rule: str, work: Callable[[], T]) -> T:
    """Run a rule by calling `work`, and return its result or raise its error. Raises TooLongError if the rule exceeds a time limit,
    or was stopped earlier in this process."""
    if rule in _stopped_rules:
        raise TooLongError("was stopped in an earlier analysis and is not started again")
    call = _ThreadedCall(work)
    try:
        call.start()
    except RuntimeError:  # the system cannot start more threads
        return work()
    try:
        _wait_for_call(call)
    except TooLongError:
        _stopped_rules.add(rule)
        raise
    finally:
        call.stop()
        if call.is_alive():  # the wait ended early, for example after Ctrl+C in a notebook
            _stopped_rules.add(rule)
    return call.result()


def _wait_for_call(call: _ThreadedCall[T]) -> None:
    for _ in range(MAX_WAIT_S):  # count short waits instead of elapsed time, because the process may be suspended
        call.join(1.0)
        if not call.is_alive():
            return
        if call.cpu_s() > MAX_RULE_CPU_S:
            raise TooLongError(f"took more than {MAX_RULE_CPU_S:.0f} s of processor time")
    raise TooLongError(f"took more than {MAX_WAIT_S / 60:.0f} min")
