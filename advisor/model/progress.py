"""How long-running work reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what is being done, the number of finished items and their total."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """Report the state."""


class ItemProgress(Protocol):
    """As `Progress`, for work with a single stage, which its caller names."""

    def __call__(self, done: int, total: int, /) -> None:
        """Report the state."""


def no_progress(*_: object) -> None:
    """Report nothing: the default for every progress callback."""
