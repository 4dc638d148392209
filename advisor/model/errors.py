"""Defines errors that are shown to the user. Each message is one line that says what to do."""

from __future__ import annotations

from typing import ClassVar


class AdvisorError(Exception):
    """An error in the user's input, described in one line. The command line prints this line and exits with status 2."""

    exit_status: ClassVar[int] = 2


class TrialsFailed(AdvisorError):  # noqa: N818 - it reports the outcome of trials, not a mistake in the input
    """Raised if a launch or a search ends early, at its start or later, because too many trials in a row failed."""

    exit_status: ClassVar[int] = 1


class UnansweredError(AdvisorError):
    """Raised if the tracking store does not answer. The same call may succeed later."""


class NothingToJudge(AdvisorError):  # noqa: N818 - the exception reports missing data, not a mistake
    """Raised if the input is valid but there is nothing to analyse: no run, no metric, or no trial that has ended."""
