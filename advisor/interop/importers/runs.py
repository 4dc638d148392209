"""The interface of importers: an importer lists the runs of a source, and each run is then read separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from advisor.interop.importers.points import Points
from advisor.tracking.runs import RunStatus


class Importer(Protocol):
    """Reads the files of one tool. A module with a function `find_runs` is also an importer."""

    def find_runs(self, source: str | Path, /) -> RunList:
        """List the runs of a source, usually a folder with its subfolders; raise AdvisorError if there are no runs."""


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs of a source before they are read."""

    runs: Sequence[SourceRun]
    notes: Sequence[str] = ()
    """Messages to the user about the source of the runs, one sentence each."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run of a source before it is read."""

    name: str
    source: tuple[str, ...]
    """Identifier of the run. It is unique within its experiment and does not depend on the working directory."""
    experiment: str
    """Default name of the experiment that the run is imported into."""
    read: Callable[[], RunContent]
    """Function that reads the run; it raises AdvisorError if the run is unreadable."""
    state: str | None = None
    """Digest of the run's files, which changes if the run grows; None if the run cannot grow."""
    experiment_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that this run proposes for its experiment. The experiment gets a tag only if all of its runs propose the same value."""


@dataclass(frozen=True, slots=True)
class RunContent:
    """Content of a run as in its source. Names and parameters need not be valid in MLflow, because `mlflow_runs` converts them."""

    points: Mapping[str, Points]
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameter values by name. The import flattens nested mappings to names with dots."""
    tags: Mapping[str, str] = field(default_factory=dict)
    status: RunStatus = "FINISHED"
    started_ms: int | None = None
    """Start of the run in milliseconds since 1970. If it is None, the earliest time of the run's points is used."""
    ended_ms: int | None = None
    notes: tuple[str, ...] = ()
    """Messages to the user about this run, one sentence each."""
