"""Defines the interface of importers: an importer first lists the runs of a source; each run is then read separately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from advisor.interop.importers.points import MetricPoints
from advisor.tracking.runs import RunStatus


class Importer(Protocol):
    """Reads the files that one tool wrote. A module with a function `find_runs` is also an importer."""

    def find_runs(self, source: str | Path, /) -> RunList:
        """List the runs of a source, usually a folder with its subfolders; raise AdvisorError if it has none."""


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs in the files of another tool, before their data are read."""

    runs: Sequence[SourceRun]
    notes: Sequence[str] = ()
    """Messages to the user about the source, one sentence each."""


@dataclass(frozen=True, slots=True)
class SourceRun:
    """A run in the files of another tool, before its data are read."""

    name: str
    source: tuple[str, ...]
    """Identifier of the run in its source, unique within the experiment and independent of the working directory."""
    experiment: str
    """Name of the experiment to import the run into, unless the user names another one."""
    read: Callable[[], RunContent]
    """Function that reads the run's data; raises AdvisorError if the data are unreadable."""
    state: str | None = None
    """Digest of the run's files, by which the next import detects that the run has grown; None if it cannot grow."""
    experiment_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags that the run proposes for its experiment, which gets a tag only if all its runs propose the same value."""


@dataclass(frozen=True, slots=True)
class RunContent:
    """Data of a run, as the other tool stored them. `mlflow_runs` makes names and parameters valid in MLflow."""

    points: Mapping[str, MetricPoints]
    params: Mapping[str, Any] = field(default_factory=dict)
    """Values of the parameters by name. The import flattens nested ones; dots separate the levels in their names."""
    tags: Mapping[str, str] = field(default_factory=dict)
    status: RunStatus = "FINISHED"
    started_ms: int | None = None
    """Start time in ms since 1970; None: the earliest time of the metric points."""
    ended_ms: int | None = None
    notes: tuple[str, ...] = ()
    """Messages to the user about this run, one sentence each."""
