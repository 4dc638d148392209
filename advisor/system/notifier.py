"""Runs a command of the user for each message about a launch or a live report, with the message as JSON on its standard input."""

from __future__ import annotations

import json
import queue
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError
from advisor.system.processes import KILL_SIGNAL, signal_process_group

NOTIFICATION_EVENTS = ("stopped", "not_finite", "doomed", "stuck", "diverging", "failed", "ended")
"""Events that cause a message. stopped: the guard stopped a trial · failed: a trial crashed or has no result · ended: all
trials have ended, or the launch failed · other events: verdicts of `advisor.engine.guard` on a trial that continues."""
MESSAGE_INTERVAL_S = 60.0
"""Minimum seconds between two messages; sooner ones are combined into a later one."""
COMMAND_TIMEOUT_S = 30.0
_MAX_MESSAGE_CHARS = 500
_MAX_BUNDLED_MESSAGES = 20


@dataclass(frozen=True, slots=True)
class Notification:
    event: str
    study: str
    trial: str | None
    """Name of the trial, or None for the whole study."""
    step: int | None
    message: str


def parse_command(text: str) -> list[str]:
    """Return the words of a notification command, which runs without a shell, or raise AdvisorError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise AdvisorError(f"--notify: the quotes of the command do not match ({error})") from None
    if not words:
        raise AdvisorError("--notify needs a command, such as: --notify ./notify.sh")
    if shutil.which(words[0]) is None:
        raise AdvisorError(f"--notify: there is no program {words[0]!r} that can be run")
    return words


class Notifier:
    """Sends one message per event and trial in the background, with `interval_s` between messages; failures go to
    `print_line`."""

    def __init__(
        self,
        words: Sequence[str],
        print_line: Callable[[str], object],
        *,
        interval_s: float = MESSAGE_INTERVAL_S,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> None:
        self._words, self._say, self._interval_s, self._timeout_s = words, print_line, interval_s, timeout_s
        self._sent: set[tuple[str, str | None]] = set()
        self._waiting: queue.SimpleQueue[Notification] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_in_background, name="advisor-notify", daemon=True)
        self._thread.start()

    def send(self, notice: Notification) -> None:
        """Send a message soon, unless a message about the same event of the same trial was sent before."""
        if self._closing.is_set() or (notice.event, notice.trial) in self._sent:
            return
        self._sent.add((notice.event, notice.trial))
        self._waiting.put(replace(notice, message=redact(notice.message)[:_MAX_MESSAGE_CHARS]))

    def close(self) -> None:
        """Send all waiting messages at once, combined into one message, and stop the thread."""
        self._closing.set()
        self._thread.join(2 * self._timeout_s + 1.0)

    def _send_in_background(self) -> None:
        is_closing = False
        while not is_closing:
            is_closing = self._closing.wait(0.1)
            notices = []
            while not self._waiting.empty():
                notices.append(self._waiting.get())
            if notices:
                self._send_notices(notices)
                self._closing.wait(self._interval_s)

    def _send_notices(self, notices: Sequence[Notification]) -> None:
        try:
            status = self._run_command(json.dumps(to_json_message(notices)) + "\n")
            failure = f"exit status {status}" if status else ""
        except subprocess.TimeoutExpired:
            failure = f"the command took longer than {self._timeout_s:.0f} s"
        except OSError as error:
            failure = error.strerror or str(error)
        if failure:  # the command and its output may contain the secret address of a webhook, so do not show them
            self._say(f"The command of --notify failed: {failure}.")

    def _run_command(self, text: str) -> int:
        process = subprocess.Popen(
            list(self._words),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C must interrupt the launcher, but not the user's command
        )
        try:
            process.communicate(text, timeout=self._timeout_s)
        finally:
            if process.poll() is None:
                signal_process_group(process.pid, KILL_SIGNAL)
                process.wait()
        return process.returncode


def to_json_message(notices: Sequence[Notification]) -> dict[str, Any]:
    """Return the first message as a JSON object, with the texts and a list of all messages if there are several."""
    fields = asdict(notices[0])
    if len(notices) == 1:
        return fields
    listed = notices[:_MAX_BUNDLED_MESSAGES]
    tail = [f"and {len(notices) - len(listed)} more"] if len(notices) > len(listed) else []
    return {**fields, "message": "\n".join([*(n.message for n in listed), *tail]), "bundled": [asdict(n) for n in listed]}
