"""The protocol that readers of all kinds of MLflow stores implement, and the function that opens a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from advisor.tracking.runs import Experiment
from advisor.tracking.stores import mysql, postgres
from advisor.tracking.stores.client_store import ClientStore
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.lookup import ExperimentListing
from advisor.tracking.stores.sqlite import SqliteStore

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Function that receives the number of runs read so far and the total number of runs."""


class Store(Protocol):
    """A reader for an MLflow store. Every method reports errors as an AdvisorError with a one-line instruction."""

    location: StoreLocation

    def experiments(self) -> list[ExperimentListing]:
        """Return all experiments of the store, including deleted ones, oldest first."""

    def study_files(self) -> list[tuple[str, dict[str, str]]]:
        """Return (name, tags) of each active experiment, oldest first. The tags include at least the tags that hold study
        files."""

    def read(self, experiment: str, *, filter: str | None, on_progress: ProgressCallback) -> Experiment:
        """Read the experiment with this name or id; see `reading.read_experiment`."""


def open_store(location: StoreLocation) -> Store:
    """Return the fastest `Store` implementation for this location."""
    if location.kind == "sqlite":
        return SqliteStore(location)
    if postgres.can_read(location):
        return postgres.PostgresStore(location)
    if mysql.can_read(location):
        return mysql.MysqlStore(location)
    return ClientStore(location)
