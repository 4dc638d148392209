"""A progress bar on standard error, which stays out of pipes and logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.analysis import Progress


@contextmanager
def progress(*, enabled: bool) -> Iterator[Progress]:
    """Yields what to tell about the work: (what, how much is done, of how much). Shows nothing where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bars:
        task = bars.add_task("Starting", total=None)

        def tell(what: str, done: int, of: int) -> None:
            bars.update(task, description=what, completed=done, total=of)

        yield tell
