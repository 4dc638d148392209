"""Reads an experiment from any MLflow store. Reading never changes or creates a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from advisor.model.errors import NothingToJudge
from advisor.tracking.runs import Experiment
from advisor.tracking.stores.client_store import ClientStore
from advisor.tracking.stores.location import StoreLocation, parse_tracking_uri
from advisor.tracking.stores.lookup import ExperimentListing
from advisor.tracking.stores.servers import ServerStore, can_read
from advisor.tracking.stores.sqlite import SqliteStore
from advisor.tracking.study.probes import exclude_report_runs

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""Receives the number of runs read so far and the total number of runs."""


class Store(Protocol):
    """A reader for an MLflow store. Every method reports errors as an AdvisorError with a one-line instruction."""

    location: StoreLocation

    def experiments(self) -> list[ExperimentListing]:
        """Return all experiments of the store, oldest first, including deleted experiments."""

    def study_files(self) -> list[tuple[str, dict[str, str]]]:
        """Return (name, tags, at least those of study files) of each active experiment, oldest first."""

    def read(self, experiment: str, *, filter: str | None, on_progress: ProgressCallback) -> Experiment:
        """Read the experiment with this name or id; see `read_experiment`."""


def open_store(location: StoreLocation) -> Store:
    if location.kind == "sqlite":
        return SqliteStore(location)
    return ServerStore(location) if can_read(location) else ClientStore(location)


def read_experiment(
    name_or_id: str, *, tracking_uri: str | None = None, filter: str | None = None, on_progress: ProgressCallback | None = None
) -> Experiment:
    """Read all active runs of an experiment with their parameters, tags and points, except metrics named `system/...`. filter:
    an MLflow filter string for runs. Runs are sorted by start time, and points by run, time and step; steps may be repeated or
    decrease, and values may be NaN or infinite. Stores of all kinds return the same data. Raises AdvisorError."""
    location = parse_tracking_uri(tracking_uri)
    on_progress = on_progress or (lambda *_: None)
    experiment = exclude_report_runs(open_store(location).read(str(name_or_id), filter=filter, on_progress=on_progress))
    if not experiment.runs:
        where = f"experiment {experiment.name!r} in {location.display}"
        if filter:
            raise NothingToJudge(f"no run of {where} matches --filter {filter!r}")
        raise NothingToJudge(f"{where} has no runs; train some trials first")
    return experiment


def list_experiments(tracking_uri: str | None = None) -> tuple[str, ...]:
    return tuple(e.name for e in active_experiments(tracking_uri))


def active_experiments(tracking_uri: str | None = None) -> tuple[ExperimentListing, ...]:
    return tuple(e for e in open_store(parse_tracking_uri(tracking_uri)).experiments() if not e.deleted)
