"""The protocol of every kind of store, and the store of an address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from advisor.tracking.runs import Experiment
from advisor.tracking.stores import mysql, postgres
from advisor.tracking.stores.client_store import ClientStore
from advisor.tracking.stores.location import Location
from advisor.tracking.stores.lookup import ExperimentEntry
from advisor.tracking.stores.sqlite import SqliteStore

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with the number of runs read and the number of all runs."""


class Store(Protocol):
    """A store of MLflow. All methods only read, and raise AdvisorError in one line that says what to do."""

    location: Location

    def experiments(self) -> list[ExperimentEntry]:
        """List all experiments, deleted ones included, oldest first."""

    def study_files(self) -> list[tuple[str, dict[str, str]]]:
        """Return (name, tags) of each active experiment, oldest first; the tags hold at least its study files."""

    def read(self, experiment: str, *, filter: str | None, system_metrics: bool, on_progress: OnProgress) -> Experiment:
        """Read the experiment of that name or id; see `reading.read_experiment`."""


def open_store(location: Location) -> Store:
    """Return the fastest reader for this kind of store."""
    if location.kind == "sqlite":
        return SqliteStore(location)
    if postgres.can_read(location):
        return postgres.PostgresStore(location)
    if mysql.can_read(location):
        return mysql.MysqlStore(location)
    return ClientStore(location)
