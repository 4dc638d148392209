"""Interfaces for callbacks that report the progress of long-running work."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Callback that receives the current activity, the number of finished items and the total number of items."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Report that `done` of `total` items of the activity `what` are finished."""


def no_progress(*_: object) -> None:
    """Ignore all progress: the default for every progress callback."""
