"""Reads an experiment by means of MLflow's client: from servers, file stores, and databases without a supported SQL driver."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import numpy as np

from advisor import contract
from advisor.tracking.points import cache, collect
from advisor.tracking.points.sidecar import SidecarCurves, SidecarSource, max_curve_points, read_sidecars, replace_by_sidecars
from advisor.tracking.runs import Experiment, Points, Run
from advisor.tracking.stores import bulk
from advisor.tracking.stores.client import LATER_REQUEST_SETTINGS, connect, filter_error, quiet_mlflow
from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.lookup import ExperimentListing, choose_experiment

_RUNS_PER_PAGE = 1000
_MAX_THREADS = 8
MIN_POINTS_TO_CACHE = 20_000
"""Minimum number of new points for which a cache file is written. Reading a smaller number of points from the server again is
faster than caching them."""


class ClientStore:
    """A `store.Store` that uses MLflow's client."""

    def __init__(self, location: StoreLocation) -> None:
        self.location = location

    def experiments(self) -> list[ExperimentListing]:
        with connect(self.location) as client:
            return _list_experiments(client)

    def study_files(self) -> list[tuple[str, dict[str, str]]]:
        with connect(self.location) as client:
            active = [e for e in _all_experiments(client) if e.lifecycle_stage != "deleted"]
            return [(e.name, collect.select_tags(e.tags)) for e in active]

    def read(self, experiment: str, *, filter: str | None, on_progress: Callable[[int, int], None]) -> Experiment:
        with connect(self.location) as client:
            chosen = choose_experiment(experiment, _list_experiments(client), self.location)
            tags = collect.select_tags(client.get_experiment(chosen.id).tags)
            with quiet_mlflow(LATER_REQUEST_SETTINGS):
                runs = [_ClientRun(run) for run in _search_runs(client, chosen.id, filter)]
                kept = cache.cache_of_experiment(self.location, chosen.id)
                points, warnings = _read_points(client, self.location, runs, kept, on_progress)
            return Experiment(chosen.name, tuple(run.convert_to_run() for run in runs), points, tags, warnings)


def _list_experiments(client: Any) -> list[ExperimentListing]:
    return [
        ExperimentListing(id=e.experiment_id, name=e.name, deleted=e.lifecycle_stage == "deleted")
        for e in _all_experiments(client)
    ]


def _all_experiments(client: Any) -> list[Any]:
    from mlflow.entities import ViewType

    experiments = _read_all_pages(lambda token: client.search_experiments(view_type=ViewType.ALL, page_token=token))
    return sorted(experiments, key=lambda e: (len(e.experiment_id), e.experiment_id))


def _search_runs(client: Any, experiment: str, filter: str | None) -> list[Any]:
    """Return the runs of the experiment with this id, in order of their start times."""
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
    items: list[Any] = []
    token = None
    while True:
        page = get_page(token)
        items += page
        token = page.token
        if not token:
            return items


class _ClientRun:
    """A run that MLflow's client returned, with the names of the metrics to read."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.id = str(run.info.run_id)
        self.metrics = [k for k in sorted(run.data.metrics) if not k.startswith(collect.SYSTEM_METRIC_PREFIX)]
        self.last_points = {m.key: m for m in run.data._metric_objs}
        self._ended = run.info.status not in ("RUNNING", "SCHEDULED")

    def convert_to_run(self) -> Run:
        info, data = self._run.info, self._run.data
        return collect.make_run(
            id=self.id,
            name=info.run_name,
            status=info.status,
            start_ms=info.start_time,
            end_ms=info.end_time,
            params=data.params,
            tags=data.tags,
        )

    def sidecar(self) -> SidecarSource | None:
        tag = self._run.data.tags.get(contract.TAG_CURVE_FILES)
        if not tag or not self._ended:
            return None
        last_ms = {key: self.last_points[key].timestamp for key in self.metrics}
        return SidecarSource(tag, self._run.info.artifact_uri or "", last_ms)

    def cache_key(self, max_curve_points: int) -> str | None:
        """Return a digest of the run's data in MLflow, including the last point of each curve.

        Inserting a point before the last point of a curve does not change the digest. Only the stores that read a database by
        SQL detect such a point.
        """
        if not self._ended:
            return None
        last = [self.last_points[key] for key in self.metrics]
        points = [(m.key, m.step, m.timestamp, repr(m.value)) for m in last]
        info = self._run.info
        sidecar = (self._run.data.tags.get(contract.TAG_CURVE_FILES), info.artifact_uri, max_curve_points)
        return cache.run_digest(self.id, info.status, (info.start_time, info.end_time), sidecar, points)

    def metrics_missing_from(self, sidecar: SidecarCurves | None) -> list[str]:
        """Return the metrics that have points in the store but not in the sidecar."""
        if sidecar is None:
            return self.metrics
        return [key for key in self.metrics if not sidecar.covers_store(key, self.last_points[key].timestamp)]


def _read_points(
    client: Any,
    location: StoreLocation,
    runs: list[_ClientRun],
    kept: cache.PointCache,
    on_progress: Callable[[int, int], None],
) -> tuple[dict[str, Points], tuple[str, ...]]:
    """Return (points by metric, warnings). The points of a run are read from the cache, or else from the run's sidecars, or
    else from the store."""
    sources = [run.sidecar() for run in runs]
    limit = max_curve_points(len(sources) - sources.count(None))
    collector = collect.PointCollector()
    known = kept.load([run.cache_key(limit) for run in runs], collector)
    sources = [None if known[i] else source for i, source in enumerate(sources)]
    sidecars, warnings = read_sidecars(sources, tracking_uri=location.uri, limit=limit, reducing=True, on_progress=on_progress)
    curves = [
        bulk.CurveRequest(metric, i, run.id, run.last_points[metric].step)
        for i, run in enumerate(runs)
        if not known[i]
        for metric in run.metrics_missing_from(sidecars[i])
    ]
    _read_histories(client, curves, len(runs), location.kind, collector, on_progress)
    on_progress(len(runs), len(runs))
    replace_by_sidecars(sidecars, collector)
    unusable = [i for i, source in enumerate(sources) if source is not None and sidecars[i] is None]
    return kept.save(collector, min_points=MIN_POINTS_TO_CACHE, except_runs=unusable), warnings


def _read_histories(
    client: Any,
    curves: list[bulk.CurveRequest],
    runs: int,
    kind: str,
    collector: collect.PointCollector,
    on_progress: Callable[[int, int], None],
) -> None:
    """If bulk requests do not return a curve completely, a separate request reads it."""
    threads = 1 if kind == "files" else _MAX_THREADS

    def report(done: int) -> None:
        on_progress(done * runs // max(len(curves), 1), runs)

    left = bulk.read_histories(client, curves, collector, threads, report) if kind == "server" else curves
    pool = ThreadPoolExecutor(threads, thread_name_prefix="advisor-read")
    try:
        histories = pool.map(lambda curve: client.get_metric_history(curve.id, curve.metric), left)
        for done, (curve, history) in enumerate(zip(left, histories, strict=True), start=len(curves) - len(left) + 1):
            _add_history(collector, curve.metric, curve.run, history)
            report(done)
    finally:
        pool.shutdown(cancel_futures=True)


def _add_history(collector: collect.PointCollector, metric: str, run: int, history: list[Any]) -> None:
    if not history:
        return
    numbers = np.fromiter(chain.from_iterable((m.step, m.timestamp) for m in history), dtype=np.int64).reshape(-1, 2)
    values = np.fromiter((m.value for m in history), dtype=np.float64, count=len(history))
    runs = np.full(len(history), run, dtype=np.int64)
    collector.add(metric, runs, numbers[:, 0].copy(), values, numbers[:, 1].copy())
