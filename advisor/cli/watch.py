"""Analyses again while trials come in, and serves the newest report to this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError
from advisor.report.live import LiveReport
from advisor.report.text.changes import changes

if TYPE_CHECKING:
    from advisor.report import Report

EVERY_S = 10.0
"""Seconds between two analyses; at least as long as one takes, so that the store is left alone half of the time."""


def follow(
    report: Report,
    *,
    make: Callable[[], Report],
    keep: Callable[[Report], object],
    port: int,
    say: Callable[[str], object],
    every: float = EVERY_S,
) -> None:
    """Serve the report, and a newer one as soon as the data changes, until the user interrupts.

    make: analyses again. keep: writes a report down. say: told what changed. An analysis that fails is told, and tried again.
    Raises AdvisorError where the port is taken.
    """
    try:
        live = LiveReport(port)
    except OSError as error:
        raise AdvisorError(f"cannot serve on port {port}: {error.strerror}; give another one by --port") from None
    with live:
        live.show(report.to_html(), _now())
        say(f"Live at {live.url} (this machine only). Ctrl+C ends it.")
        took, failed = 0.0, None
        try:
            while True:
                time.sleep(max(every, took))
                began = time.monotonic()
                try:
                    report, failed = _once(report, live, make, keep, say), None
                except Exception as error:
                    if (why := _in_a_line(error)) != failed:
                        failed = why
                        say(f"{_now()} The analysis failed, and is tried again: {failed}")
                live.fail(failed)
                took = time.monotonic() - began
        except KeyboardInterrupt:
            say("")


def _once(
    before: Report,
    live: LiveReport,
    make: Callable[[], Report],
    keep: Callable[[Report], object],
    say: Callable[[str], object],
) -> Report:
    after = make()
    if after.provenance.data == before.provenance.data:
        return before
    keep(after)
    said = changes(before, after)
    live.show(after.to_html(), _now(), said)
    for line in said or ("More values were logged; the findings are the same.",):
        say(f"{_now()} {line}")
    return after


def _in_a_line(error: Exception) -> str:
    """What went wrong; of errors that were not written for people also their kind, and no password."""
    told = str(error) if isinstance(error, AdvisorError) else f"{type(error).__name__}: {error}"
    return " ".join(redact(told).split())


def _now() -> str:
    return time.strftime("%H:%M:%S")
