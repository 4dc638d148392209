"""Defines the interface of callbacks that report the progress of long-running work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""Callback that receives a description of the work, the number of finished items and the total number of items."""


def ignore_progress(*_: object) -> None:
    """Do nothing."""
