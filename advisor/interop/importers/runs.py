"""The contract between importers and the import: an importer lists the runs of a source, then each run is read by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from advisor.interop.importers.points import Points
from advisor.tracking.runs import RunStatus


class Importer(Protocol):
    """Reads what one tool wrote. A module with a function `find` is an importer, too."""

    def find(self, source: str | Path, /) -> RunList:
        """List the runs of a source, usually those at or below a folder; raise AdvisorError if there are none."""


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs of a source, not read yet."""

    runs: Sequence[SourceRun]
    notes: Sequence[str] = ()
    """What the user should know of the source, one sentence each."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run that a source holds, not read yet."""

    name: str
    source: tuple[str, ...]
    """Identifies the run: the same at each import and from any working directory, and unique within its experiment."""
    experiment: str
    """Default name of the experiment to import it into."""
    read: Callable[[], RunContent]
    """Read the run; raises AdvisorError if it is unreadable."""
    state: str | None = None
    """Changes when the run has grown; None for a source that never grows."""
    experiment_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the experiment. It gets those on which all its runs agree."""


@dataclass(frozen=True, slots=True)
class RunContent:
    """A run as its source has it, with names and parameters of any type (see `mlflow_runs` for what MLflow accepts)."""

    points: Mapping[str, Points]
    params: Mapping[str, Any] = field(default_factory=dict)
    """By name. Nested mappings become names with dots."""
    tags: Mapping[str, str] = field(default_factory=dict)
    status: RunStatus = "FINISHED"
    started_ms: int | None = None
    """Defaults to the time of the first point that has one."""
    ended_ms: int | None = None
    notes: tuple[str, ...] = ()
    """What the user should know of this run, one sentence each."""
