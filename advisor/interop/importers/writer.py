"""Writes finished runs into MLflow many at a time: whole runs or nothing, and no run twice."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from advisor import contract
from advisor.model.errors import AdvisorError
from advisor.model.space import FloatArray
from advisor.tracking.points.collect import LARGEST
from advisor.tracking.runs import RunStatus
from advisor.tracking.stores import sqlite
from advisor.tracking.stores.client import check_database, explain, quiet_mlflow
from advisor.tracking.stores.location import Location, default_for_writing, locate

TAG_SOURCE = "advisor.imported_from"
"""JSON list that tells what a run was imported from; while the run is being written, `UNFINISHED` stands before it."""
UNFINISHED = "unfinished "
"""An import that finds a run of such a source writes it again."""
TAG_STATE = "advisor.imported_state"
"""What the source looked like when the run was imported: an import that finds another text completes the run."""
RENEWED_TAGS = (contract.TAG_STUDY_FILE,)
"""Tags of an experiment that the next import sets anew."""
MAX_VALUE = 5000
"""Characters of a parameter's or tag's value; the smallest limit of the MLflow versions in use."""
_MAX_KEY = 250


@dataclass(frozen=True, slots=True)
class NewPoints:
    """Points of one metric, arrays of one shape (n,)."""

    steps: NDArray[np.int64]
    values: FloatArray
    times_ms: NDArray[np.int64]

    def distinct(self) -> NewPoints:
        """The same without repeats of a point, of which a tracker holds one."""
        if bool((np.diff(self.steps) > 0).all()):
            return self
        nan = np.isnan(self.values)
        columns = (nan, np.where(nan, 0.0, np.clip(self.values, -LARGEST, LARGEST)), self.times_ms, self.steps)
        order = np.lexsort(columns)
        again = np.logical_and.reduce([column[order][1:] == column[order][:-1] for column in columns])
        keep = np.ones(len(order), dtype=np.bool_)
        keep[order[1:][again]] = False
        return NewPoints(self.steps[keep], self.values[keep], self.times_ms[keep])


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be written; its names are ones that MLflow takes (see `Names`)."""

    source: tuple[str, ...]
    """What identifies it where it comes from: two runs of one experiment never have the same."""
    name: str
    status: RunStatus
    started_ms: int
    ended_ms: int | None
    params: Mapping[str, str]
    tags: Mapping[str, str]
    points: Mapping[str, NewPoints] = field(default_factory=dict)
    continues: str | None = None
    """Id of the run that an earlier import wrote of it, to which what it lacks is added."""

    @property
    def all_tags(self) -> dict[str, str]:
        """Its tags as MLflow holds them, the name and the source among them."""
        return {**self.tags, "mlflow.runName": self.name, TAG_SOURCE: source_text(self.source)}


def source_text(source: Sequence[str]) -> str:
    """A source as the value of `TAG_SOURCE`."""
    return json.dumps(list(source), ensure_ascii=False)


class Names:
    """Names as MLflow takes them: a character that it refuses becomes "_", said in `warnings` once a name."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._safe: dict[str, str] = {}

    def safe(self, name: str) -> str:
        """A name for a parameter, metric or tag; names that differ stay different."""
        if name not in self._safe:
            safe = re.sub(r"[^\w.\-/ :]", "_", name)
            safe = "/".join(part for part in safe.split("/") if part not in ("", ".", "..")) or "_"
            safe, n = safe[:_MAX_KEY], 2
            while safe in self._safe.values():
                safe, n = f"{safe[: _MAX_KEY - 4]}_{n}", n + 1
            self._safe[name] = safe
            if safe != name:
                self.warnings.append(f"{name!r} is no name that MLflow takes; it was imported as {safe!r}.")
        return self._safe[name]


@dataclass(frozen=True, slots=True)
class Imported:
    """A run that an earlier import wrote."""

    run: str
    """Its id."""
    state: str | None
    """Its `TAG_STATE`."""


Written = Callable[[NewRun, int], None]
"""Told each run that is safe, and how many points it got."""


class Writer(Protocol):
    """Writes runs into one tracker."""

    def imported(self, experiment: str) -> Mapping[str, Imported]:
        """The runs that the experiment already holds, by source; empty if there is no such experiment."""

    def write(self, experiment: str, tags: Mapping[str, str], runs: Iterable[NewRun], written: Written) -> None:
        """Write runs into the experiment, made with `tags` if it is new; `written` is called after each run that is safe."""


@contextmanager
def open_writer(tracking_uri: str | None) -> Iterator[Writer]:
    """The fastest writer for the store, which is made where it is a SQLite file that does not exist yet."""
    location = locate(tracking_uri) if tracking_uri else default_for_writing()
    with quiet_mlflow():
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            if location.kind in ("sqlite", "database"):
                from advisor.interop.importers.sql_writer import SqlWriter

                yield SqlWriter(_sql_store(location))
            else:
                from advisor.interop.importers.client_writer import ClientWriter

                yield ClientWriter(location)
        except AdvisorError:
            raise
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            raise explain(error, location, "write to") from error


def _sql_store(location: Location) -> Any:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    artifacts = "./mlruns"
    if location.path is None:
        check_database(location)
    else:
        folder = location.path.parent
        if not folder.is_dir():
            raise AdvisorError(f"cannot make {location.path}: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise AdvisorError(f"cannot write to {folder}: permission denied")
        if location.path.exists() and location.path.stat().st_size:
            sqlite.check_writable(location)
        artifacts = str(folder / "mlruns")
    return SqlAlchemyStore(location.uri, artifacts)  # type: ignore[no-untyped-call]
