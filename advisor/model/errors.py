"""Defines the errors that users see. Each error message is one line and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar


class AdvisorError(Exception):
    """An error in the user's input, described in one line. The command line prints the line and exits with status 2."""

    exit_status: ClassVar[int] = 2


class TrialsFailed(AdvisorError):  # noqa: N818 - it reports the outcome of trials, not a mistake in the input
    """Raised if a launch or a search ends early because too many trials in a row failed."""

    exit_status: ClassVar[int] = 1


class UnansweredError(AdvisorError):
    """Raised if the tracking store does not answer; the same call may succeed later."""


class NothingToJudge(AdvisorError):  # noqa: N818 - the exception reports missing data, not a mistake
    """Raised if the input is valid but there is nothing to analyse: no run, no metric, or no ended trial."""


@contextmanager
def os_errors_as(what: str, hint: str = "") -> Iterator[None]:
    """Raise an AdvisorError in place of an OSError: what failed, the system's reason, and a hint what to do."""
    try:
        yield
    except OSError as error:
        raise AdvisorError(f"{what}: {error.strerror or error}{hint and '; '}{hint}") from None


def write_errors_to(folder: Path) -> AbstractContextManager[None]:
    """Raise an AdvisorError that asks for another `--out` if this output folder is not writable."""
    return os_errors_as(f"cannot write to {str(folder)!r}", "choose another folder with --out")
