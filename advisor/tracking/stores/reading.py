"""Reads an experiment from any MLflow store. Reading never changes or creates a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from advisor.model.errors import NothingToJudge
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import servers, sqlite
from advisor.tracking.stores.client_store import ClientStore
from advisor.tracking.stores.database import SqlTrackingStore
from advisor.tracking.stores.location import StoreLocation, parse_tracking_uri
from advisor.tracking.stores.lookup import ExperimentListing
from advisor.tracking.study.probes import exclude_report_runs

Store: TypeAlias = SqlTrackingStore | ClientStore
"""A reader for an MLflow store. All methods raise AdvisorError. `experiments` lists all experiments, also deleted ones.
`study_files` returns (name, tags) of the active experiments; the tags include those of study files. Both return the oldest
experiment first. `read` returns one experiment; see `read_experiment`."""


def open_store(location: StoreLocation) -> Store:
    if location.kind == "sqlite":
        return SqlTrackingStore(location, sqlite.connect)
    return SqlTrackingStore(location, servers.connect) if servers.can_read(location) else ClientStore(location)


def read_experiment(
    name_or_id: str,
    *,
    tracking_uri: str | None = None,
    filter: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
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
