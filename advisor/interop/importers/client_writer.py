"""Writes runs with the client of MLflow, for tracking servers and file stores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

from advisor.interop.importers.mlflow_runs import SOURCE_RUN_TAG, UNFINISHED_RUN_PREFIX, NewRun, source_text
from advisor.interop.importers.points import MetricPoints
from advisor.interop.importers.writer import RunWriter, RunWrittenCallback
from advisor.tracking.points.collect import LARGEST_FLOAT
from advisor.tracking.stores.client import FIRST_REQUEST_SETTINGS, LATER_REQUEST_SETTINGS, open_client, quiet_mlflow
from advisor.tracking.stores.location import StoreLocation

_METRICS_PER_CALL = 1000
_PARAMS_PER_CALL = 100
_MAX_THREADS = 4

StoredPoint = tuple[int, int, float | None]
"""(Step, timestamp, value) of a metric point. The value None represents NaN."""


class ClientWriter(RunWriter):
    """Writes runs to MLflow with `MlflowClient`. A new run has a tag that marks it as unfinished until all its data are stored.

    The next import deletes the runs that are marked as unfinished.
    """

    def __init__(self, location: StoreLocation) -> None:
        with quiet_mlflow(FIRST_REQUEST_SETTINGS):
            self._client = open_client(location)
            if location.kind == "files" and location.path is not None:
                (location.path / ".trash").mkdir(exist_ok=True)  # MLflow refuses to write runs if this folder is missing
            self._client.search_experiments(max_results=1)
        self._threads = 1 if location.kind == "files" else _MAX_THREADS

    def write(self, name: str, tags: Mapping[str, str], runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        """See `RunWriter.write`."""
        with quiet_mlflow(LATER_REQUEST_SETTINGS):
            super().write(name, tags, runs, on_written)

    def _find_experiment(self, name: str) -> Any:
        return self._client.get_experiment_by_name(name)

    def _create_experiment(self, name: str, tags: Mapping[str, str]) -> Any:
        return self._client.get_experiment(self._client.create_experiment(name, tags=dict(tags)))

    def _set_tag(self, experiment_id: str, tag: str, value: str) -> None:
        self._client.set_experiment_tag(experiment_id, tag, value)

    def _tags_of_runs(self, experiment_id: str) -> Mapping[str, Mapping[str, str]]:
        tags = {}
        token: str | None = ""
        while token is not None:
            page = self._client.search_runs([experiment_id], max_results=1000, page_token=token or None)
            tags.update({run.info.run_id: run.data.tags for run in page})
            token = page.token or None
        return tags

    def _delete_unfinished(self, experiment_id: str) -> None:
        for run_id, tags in self._tags_of_runs(experiment_id).items():
            if tags.get(SOURCE_RUN_TAG, "").startswith(UNFINISHED_RUN_PREFIX):
                self._client.delete_run(run_id)

    def _write_runs(self, experiment: Any, runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        """Write the runs in small groups, so that only one group is in memory at a time."""
        remaining = iter(runs)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="advisor-write") as pool:

            def submit(count: int) -> set[Any]:
                return {pool.submit(self._write_run, experiment.experiment_id, run) for run in islice(remaining, count)}

            active = submit(self._threads)
            while active:
                done, active = wait(active, return_when=FIRST_COMPLETED)
                for future in done:
                    on_written(*future.result())
                active |= submit(len(done))

    def _write_run(self, experiment_id: str, run: NewRun) -> tuple[NewRun, int]:
        """Write a new run, or add the missing data to a stored run. Return (run, number of metric points sent)."""
        if run.stored_run_id is not None:
            return run, self._complete_run(run.stored_run_id, run)
        source = source_text(run.source)
        tags = {**run.tags, SOURCE_RUN_TAG: UNFINISHED_RUN_PREFIX + source}
        created = self._client.create_run(experiment_id, start_time=run.started_ms, tags=tags, run_name=run.name)
        run_id = created.info.run_id
        count = self._send_data(run_id, run.params, ((m, p, set()) for m, p in run.points.items()))
        self._set_end(run_id, run)
        self._client.set_tag(run_id, SOURCE_RUN_TAG, source)
        return run, count

    def _complete_run(self, run_id: str, run: NewRun) -> int:
        stored = self._client.get_run(run_id).data
        missing = {key: value for key, value in run.params.items() if key not in stored.params}
        points = (
            (metric, points, self._stored_points(run_id, metric) if metric in stored.metrics else set())
            for metric, points in run.points.items()
        )
        count = self._send_data(run_id, missing, points)
        self._set_end(run_id, run)
        for tag, value in run.tags.items():
            if stored.tags.get(tag) != value:
                self._client.set_tag(run_id, tag, value)
        return count

    def _stored_points(self, run_id: str, metric: str) -> set[StoredPoint]:
        return {_comparable_point(m.step, m.timestamp, m.value) for m in self._client.get_metric_history(run_id, metric)}

    def _send_data(
        self, run_id: str, params: Mapping[str, str], points: Iterable[tuple[str, MetricPoints, set[StoredPoint]]]
    ) -> int:
        """Send a run's parameters, and its metric points that are not yet stored. Return the number of metric points sent.

        points: one tuple (metric, all points, points already stored) for each metric.
        """
        from mlflow.entities import Metric, Param

        for chunk in _split_into_chunks([Param(k, v) for k, v in params.items()], _PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=chunk)
        count = 0
        missing = (
            Metric(metric, value, time, step)
            for metric, p, stored in ((metric, p.distinct(), stored) for metric, p, stored in points)
            for step, time, value in zip(p.steps.tolist(), p.times_ms.tolist(), p.values.tolist(), strict=True)
            if not stored or _comparable_point(step, time, value) not in stored
        )
        for chunk in _split_into_chunks(missing, _METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=chunk)
            count += len(chunk)
        return count

    def _set_end(self, run_id: str, run: NewRun) -> None:
        if run.ended_ms is not None:
            self._client.set_terminated(run_id, run.status, run.ended_ms)
        elif run.stored_run_id is not None or run.status not in ("RUNNING", "SCHEDULED"):
            self._client.update_run(run_id, status=run.status)


def _comparable_point(step: int, time: int, value: float) -> StoredPoint:
    return step, time, None if math.isnan(value) else min(max(value, -LARGEST_FLOAT), LARGEST_FLOAT)


def _split_into_chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
