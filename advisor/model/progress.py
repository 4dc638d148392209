"""Defines the interface of callbacks that report the progress of long-running work."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Callback that receives a description of the work, the number of finished items and the total number of items."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Report that `done` of `total` items of the work `what` are finished."""


def ignore_progress(*_: object) -> None:
    """Do nothing; this is the default progress callback."""
