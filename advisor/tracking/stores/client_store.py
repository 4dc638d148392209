"""Reads an experiment by means of MLflow's client: from servers, file stores, and databases without a supported SQL driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from advisor.tracking.points import collect
from advisor.tracking.points.autopsies import add_autopsies
from advisor.tracking.points.cache import cache_of_experiment
from advisor.tracking.points.load import LastPoint, StoredRun, read_points
from advisor.tracking.points.sidecar import SidecarCurves
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import bulk
from advisor.tracking.stores.client import LATER_REQUEST_SETTINGS, connect, filter_error, quiet_mlflow
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.lookup import ExperimentListing, choose_experiment

_RUNS_PER_PAGE = 1000
_MAX_THREADS = 8
MIN_POINTS_TO_CACHE = 20_000
"""Minimum new points for a cache file; reading fewer points from the server again is faster."""


class ClientStore:
    """A `reading.Store` that uses MLflow's client."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location

    def experiments(self) -> list[ExperimentListing]:
        with connect(self.location) as client:
            return _list_experiments(client)

    def study_files(self) -> list[tuple[str, dict[str, str]]]:
        with connect(self.location) as client:
            active_experiments = [e for e in _all_experiments(client) if e.lifecycle_stage != "deleted"]
            return [(e.name, collect.select_tags(e.tags)) for e in active_experiments]

    def read(self, experiment: str, *, filter: str | None, on_progress: Callable[[int, int], None]) -> Experiment:
        with connect(self.location) as client:
            listing = choose_experiment(experiment, _list_experiments(client), self.location)
            tags = collect.select_tags(client.get_experiment(listing.id).tags)
            with quiet_mlflow(LATER_REQUEST_SETTINGS):
                stored_runs = [_stored_run(run) for run in _search_runs(client, listing.id, filter)]
                points, warnings = read_points(
                    stored_runs,
                    cache_of_experiment(self.location, listing.id),
                    partial(_read_histories, client, stored_runs, self.location.kind, on_progress),
                    tracking_uri=self.location.uri,
                    min_points_to_cache=MIN_POINTS_TO_CACHE,
                    on_progress=on_progress,
                )
                stored_runs, autopsy_warnings = add_autopsies(stored_runs, self.location.uri)
            return Experiment(listing.name, tuple(s.run for s in stored_runs), points, tags, (*warnings, *autopsy_warnings))


def _list_experiments(client: Any) -> list[ExperimentListing]:
    return [ExperimentListing(e.experiment_id, e.name, e.lifecycle_stage == "deleted") for e in _all_experiments(client)]


def _all_experiments(client: Any) -> list[Any]:
    from mlflow.entities import ViewType

    experiments = _read_all_pages(lambda token: client.search_experiments(view_type=ViewType.ALL, page_token=token))
    return sorted(experiments, key=lambda e: (len(e.experiment_id), e.experiment_id))


def _search_runs(client: Any, experiment: str, filter: str | None) -> list[Any]:
    from mlflow.exceptions import MlflowException

    def page(token: str | None) -> Any:
        return client.search_runs([experiment], filter or "", max_results=_RUNS_PER_PAGE, page_token=token)

    try:
        runs = _read_all_pages(page)
    except MlflowException as error:
        if filter and error.error_code == "INVALID_PARAMETER_VALUE":
            raise filter_error(filter, error) from error
        raise
    return sorted(runs, key=lambda run: (run.info.start_time or 0, run.info.run_id))


def _read_all_pages(get_page: Callable[[str | None], Any]) -> list[Any]:
    page = get_page(None)
    items = list(page)
    while page.token:
        page = get_page(page.token)
        items += page
    return items


def _stored_run(run: Any) -> StoredRun:
    info, data = run.info, run.data
    times, name = {"start_ms": info.start_time, "end_ms": info.end_time}, info.run_name
    made_run = collect.make_run(id=str(info.run_id), name=name, status=info.status, params=data.params, tags=data.tags, **times)
    metrics = sorted((m for m in data._metric_objs if not m.key.startswith(collect.SYSTEM_METRIC_PREFIX)), key=lambda m: m.key)
    return StoredRun(made_run, info.artifact_uri or "", {m.key: LastPoint(m.timestamp, m.step, m.value) for m in metrics})


def _read_histories(
    client: Any,
    stored: Sequence[StoredRun],
    kind: str,
    on_progress: Callable[[int, int], None],
    indices: Sequence[int],
    sidecars: Sequence[SidecarCurves | None],
    collector: collect.PointCollector,
) -> None:
    """Add the curves that no sidecar covers, by single requests if bulk requests do not return them completely."""
    curves = [
        bulk.CurveRequest(metric, i, stored[i].run.id, last.step)
        for i in indices
        for metric, last in stored[i].last_points.items()
        if (sidecar := sidecars[i]) is None or not sidecar.covers_store(metric, last.time_ms)
    ]
    max_threads = 1 if kind == "files" else _MAX_THREADS

    def report(done: int) -> None:
        on_progress(done * len(stored) // max(len(curves), 1), len(stored))

    unread = bulk.read_histories(client, curves, collector, max_threads, report) if kind == "server" else curves
    pool = ThreadPoolExecutor(max_threads, thread_name_prefix="advisor-read")
    try:
        histories = pool.map(lambda curve: client.get_metric_history(curve.id, curve.metric), unread)
        for done, (curve, history) in enumerate(zip(unread, histories, strict=True), start=len(curves) - len(unread) + 1):
            steps, times = (np.array([getattr(m, name) for m in history], dtype=np.int64) for name in ("step", "timestamp"))
            values = np.array([m.value for m in history], dtype=np.float64)
            collector.add(curve.metric, np.full(len(history), curve.run, dtype=np.int64), steps, values, times)
            report(done)
    finally:
        pool.shutdown(cancel_futures=True)
