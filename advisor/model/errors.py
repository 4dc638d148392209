"""Defines the errors that the program shows to its users. Each error message is one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar


class AdvisorError(Exception):
    """An error in the user's input, with a message of one line. The command line prints the message and exits with status 2."""

    exit_status: ClassVar[int] = 2


class TrialsFailed(AdvisorError):  # noqa: N818 - the exception reports the outcome of trials, not a mistake
    """Raised if a launch or a search ends early because too many consecutive trials failed."""

    exit_status: ClassVar[int] = 1


class UnansweredError(AdvisorError):
    """Raised if the tracking store does not answer, so that the same call may succeed later."""


class NothingToJudge(AdvisorError):  # noqa: N818 - the exception reports missing data, not a mistake
    """Raised if the input is valid but contains nothing to analyse: no run, no metric, or no ended trial."""


@contextmanager
def convert_os_errors(what: str, hint: str = "") -> Iterator[None]:
    """Turn an OSError into an AdvisorError. what: the failed action; hint: what to do."""
    try:
        yield
    except OSError as error:
        raise AdvisorError(f"{what}: {error.strerror or error}{hint and '; '}{hint}") from None


def convert_write_errors(folder: Path) -> AbstractContextManager[None]:
    """Turn an OSError while writing to `folder` into an AdvisorError that asks for another `--out`."""
    return convert_os_errors(f"cannot write to {str(folder)!r}", "choose another folder with --out")
