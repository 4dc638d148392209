"""The option `--notify` of `advisor run`, `advisor tune` and `advisor watch`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

from advisor.execution.guarding import GuardedStudy, Reading, StudyGuard
from advisor.model.errors import AdvisorError
from advisor.system.notifier import NOTIFICATION_EVENTS, Notification, Notifier, parse_command

_GUARD_POLL_S = 1.0
_MAX_READS_WITHOUT_TRIAL = 2
"""A study counts as ended after this many successive reads without a running trial. A single one may fall between two trials."""


@contextmanager
def notifier_for_command(command: str | None, study: str, *, quiet: bool) -> Iterator[Notifier | None]:
    """Yield a notifier that runs the command, or None without a command. An AdvisorError of the block is its last message."""
    if command is None:
        yield None
        return
    say = (lambda _: None) if quiet else (lambda line: click.echo(line, err=True))
    notifier = Notifier(parse_command(command), say)
    try:
        yield notifier
    except AdvisorError as error:
        notifier.send(Notification("ended", study, None, None, str(error)))
        raise
    finally:
        notifier.close()


@contextmanager
def notify_of_study_events(command: str | None, guarded: GuardedStudy, *, quiet: bool) -> Iterator[None]:
    """During the `with` block, a background thread sends messages about the trials of a study that other processes train."""
    with notifier_for_command(command, guarded.experiment, quiet=quiet) as notifier:
        if notifier is None:
            yield
            return
        guard, ended = StudyGuard(guarded), threading.Event()
        follower = _StudyFollower(guard, notifier)
        thread = threading.Thread(target=follower.follow, args=(ended,), name="advisor-notify-study", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            guard.close()


class _StudyFollower:
    def __init__(self, guard: StudyGuard, notifier: Notifier) -> None:
        self._guard, self._notifier = guard, notifier
        self._known_failures: set[str] | None = None
        self._known_stops: set[str] = set()
        self._ran, self._without_running = False, 0

    def follow(self, ended: threading.Event) -> None:
        while not ended.wait(_GUARD_POLL_S):
            reading = self._guard.latest()
            if reading is not None and reading.error is None:
                for notice in self._new_notices(reading):
                    self._notifier.send(notice)

    def _new_notices(self, reading: Reading) -> Iterator[Notification]:
        if self._known_failures is None:  # send no message about trials that failed or stopped before this process started
            self._known_failures, self._known_stops = set(reading.failed), set(reading.stopped)
        for verdict in reading.running:
            if verdict.state in NOTIFICATION_EVENTS:
                yield Notification(verdict.state, reading.study, verdict.trial, verdict.step, verdict.message)
            if verdict.state in ("doomed", "not_finite"):
                self._known_stops.add(verdict.trial)  # send no second message when this trial is stopped
        for trial in sorted(set(reading.failed) - self._known_failures):
            reason = f": {reading.failed[trial]}" if reading.failed[trial] else ""
            yield Notification("failed", reading.study, trial, None, f"{trial} failed{reason}")
        for trial in sorted(set(reading.stopped) - self._known_stops):
            step, reason = reading.stopped[trial]
            yield Notification("stopped", reading.study, trial, step, f"{trial} was stopped at step {step:,}: {reason}")
        self._known_failures |= set(reading.failed)
        self._known_stops |= set(reading.stopped)
        self._ran = self._ran or bool(reading.running)
        self._without_running = 0 if reading.running else self._without_running + 1
        if self._ran and self._without_running == _MAX_READS_WITHOUT_TRIAL:
            yield Notification("ended", reading.study, None, None, f"No trial of {reading.study} is running any more.")
