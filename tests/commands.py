"""What tests of the command line share: how it is called, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Advisor = Callable[..., tuple[int, str, str]]
"""Runs the command line: (exit status, standard output, standard error)."""
Refused = Callable[..., str]
"""Runs what cannot be done, and gives the line that says why."""


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
