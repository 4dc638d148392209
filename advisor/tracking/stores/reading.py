"""Reads an experiment from wherever MLflow keeps it. Reading never writes, and never creates a store that was not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

from advisor.model.errors import NothingToJudge
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import client, mysql, postgres, sqlite
from advisor.tracking.stores.location import Location, locate
from advisor.tracking.stores.lookup import Listed
from advisor.tracking.study.probes import without_reports


def read_experiment(
    name_or_id: str,
    *,
    tracking_uri: str | None = None,
    filter: str | None = None,
    system_metrics: bool = False,
    alone: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Experiment:
    """All runs of an experiment that were not deleted, with their parameters, tags and every point of their metrics.

    name_or_id: the experiment's name or its id. tracking_uri: an MLflow tracking URI, or the path of a database file or a folder;
    default as MLflow resolves it. filter: an MLflow filter string over runs. system_metrics: read `system/...` metrics as well.
    alone: nothing else in this program has the store open. Only then may a second library of SQLite, which is faster, read its
    file: when it closes that, the locks of the first one are gone, too. on_progress: told (runs read, runs in all).

    Runs come in the order of their start, points by run, time and step; nothing is repaired: steps may repeat or go back, values
    may be NaN or infinite. All stores give the same. Raises AdvisorError, in one line that says what to do.
    """
    location = locate(tracking_uri)
    reader = _reader(location)
    read = partial(sqlite.read, alone=alone) if reader is sqlite else reader.read
    experiment: Experiment = read(
        location,
        str(name_or_id),
        filter=filter,
        system_metrics=system_metrics,
        on_progress=on_progress or _silent,
    )
    experiment = without_reports(experiment)
    if not experiment.runs:
        where = f"experiment {experiment.name!r} in {location.shown}"
        if filter:
            raise NothingToJudge(f"no run of {where} matches --filter {filter!r}")
        raise NothingToJudge(f"{where} has no runs; log some trials first")
    return experiment


def list_experiments(tracking_uri: str | None = None) -> tuple[str, ...]:
    """The names of a store's experiments that were not deleted, oldest first. Raises AdvisorError as `read_experiment` does."""
    return tuple(e.name for e in listed_experiments(tracking_uri))


def listed_experiments(tracking_uri: str | None = None) -> tuple[Listed, ...]:
    """As `list_experiments`, with their ids."""
    location = locate(tracking_uri)
    return tuple(e for e in _reader(location).list_experiments(location) if not e.deleted)


def _reader(location: Location) -> ModuleType:
    """The module that reads this kind of store fastest."""
    if location.kind == "sqlite":
        return sqlite
    return next((module for module in (postgres, mysql) if module.is_possible(location)), client)


def _silent(done: int, of: int) -> None:
    pass
