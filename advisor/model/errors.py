"""The errors that a person may see: each is one line that says what to do."""

from __future__ import annotations


class AdvisorError(Exception):
    """Anything wrong with the input, said in one clear line; the command line prints it and exits with status 2."""


class NothingToJudge(AdvisorError):  # noqa: N818 - no error of anybody
    """There is nothing wrong, and nothing to analyse either: no run, no metric, or no trial that has ended."""
