"""Shows a progress bar on standard error if that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bars, TextColumn, TimeElapsedColumn

from advisor.model.progress import Progress


@contextmanager
def progress_bar(*, enabled: bool) -> Iterator[Progress]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bars:
        task = bars.add_task("Starting", total=None)

        def update(what: str, done: int, total: int, /) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield update
