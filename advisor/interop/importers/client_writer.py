"""Writes runs through MLflow's client, for tracking servers and folders of files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

from advisor.interop.importers.writer import (
    RENEWED_TAGS,
    TAG_SOURCE,
    TAG_STATE,
    UNFINISHED,
    Imported,
    NewPoints,
    NewRun,
    Written,
    source_text,
)
from advisor.model.errors import AdvisorError
from advisor.tracking.points.collect import LARGEST
from advisor.tracking.stores.client import IMPATIENT, PATIENT, open_client, quiet_mlflow
from advisor.tracking.stores.location import Location

_METRICS_A_CALL = 1000
_PARAMS_A_CALL = 100
_THREADS = 4


class ClientWriter:
    """A `Writer` over `MlflowClient`. A run that was cut off in the middle is deleted and written again by the next import."""

    def __init__(self, location: Location) -> None:
        with quiet_mlflow(IMPATIENT):
            self._client = open_client(location)
            if location.kind == "files" and location.path is not None:
                (location.path / ".trash").mkdir(exist_ok=True)  # MLflow's folder, without which it writes nothing
            self._client.search_experiments(max_results=1)
        self._threads = 1 if location.kind == "files" else _THREADS

    def imported(self, experiment: str) -> Mapping[str, Imported]:
        """See `Writer.imported`."""
        found = self._existing(experiment)
        if found is None:
            return {}
        tags = {run.info.run_id: run.data.tags for run in self._runs(found.experiment_id)}
        return {
            of_run[TAG_SOURCE]: Imported(run, of_run.get(TAG_STATE))
            for run, of_run in tags.items()
            if TAG_SOURCE in of_run
        }

    def write(self, experiment: str, tags: Mapping[str, str], runs: Iterable[NewRun], written: Written) -> None:
        """See `Writer.write`."""
        with quiet_mlflow(PATIENT):
            found = self._existing(experiment)
            id = found.experiment_id if found else self._client.create_experiment(experiment, tags=dict(tags))
            for tag in RENEWED_TAGS if found else ():
                if tag in tags and found.tags.get(tag) != tags[tag]:
                    self._client.set_experiment_tag(id, tag, tags[tag])
            for run in list(self._runs(id)) if found else ():
                if run.data.tags.get(TAG_SOURCE, "").startswith(UNFINISHED):
                    self._client.delete_run(run.info.run_id)
            with ThreadPoolExecutor(self._threads, thread_name_prefix="advisor-write") as pool:
                waiting = iter(runs)
                going = {pool.submit(self._write, id, run) for run in islice(waiting, self._threads)}
                while going:
                    ended, going = wait(going, return_when=FIRST_COMPLETED)
                    for future in ended:
                        written(*future.result())
                    going |= {pool.submit(self._write, id, run) for run in islice(waiting, len(ended))}

    def _existing(self, name: str) -> Any:
        found = self._client.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage != "active":
            raise AdvisorError(
                f"experiment {name!r} exists but was deleted; restore it with: "
                f"mlflow experiments restore -x {found.experiment_id}, or pass another --experiment"
            )
        return found

    def _runs(self, experiment: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([experiment], max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _write(self, experiment: str, run: NewRun) -> tuple[NewRun, int]:
        """Write the run, or what the one in the store lacks; gives it and how many points were sent."""
        if run.continues is not None:
            return run, self._complete(run.continues, run)
        source = source_text(run.source)
        tags = {**run.tags, TAG_SOURCE: UNFINISHED + source}
        id = self._client.create_run(experiment, start_time=run.started_ms, tags=tags, run_name=run.name).info.run_id
        count = self._send(id, run.params, ((m, p, set()) for m, p in run.points.items()))
        self._end(id, run)
        self._client.set_tag(id, TAG_SOURCE, source)
        return run, count

    def _complete(self, id: str, run: NewRun) -> int:
        there = self._client.get_run(id).data
        missing = {key: value for key, value in run.params.items() if key not in there.params}
        known = (
            (metric, points, self._history(id, metric) if metric in there.metrics else set())
            for metric, points in run.points.items()
        )
        count = self._send(id, missing, known)
        self._end(id, run)
        for tag, value in run.tags.items():
            if there.tags.get(tag) != value:
                self._client.set_tag(id, tag, value)
        return count

    def _history(self, id: str, metric: str) -> set[Point]:
        return {_point(m.step, m.timestamp, m.value) for m in self._client.get_metric_history(id, metric)}

    def _send(self, id: str, params: Mapping[str, str], points: Iterable[tuple[str, NewPoints, set[Point]]]) -> int:
        """Send the parameters and of each metric the points that are not known; gives how many of these."""
        from mlflow.entities import Metric, Param

        for of_params in _chunks([Param(k, v) for k, v in params.items()], _PARAMS_A_CALL):
            self._client.log_batch(id, params=of_params)
        count = 0
        new = (
            Metric(metric, value, time, step)
            for metric, p, known in ((metric, p.distinct(), known) for metric, p, known in points)
            for step, time, value in zip(p.steps.tolist(), p.times_ms.tolist(), p.values.tolist(), strict=True)
            if not known or _point(step, time, value) not in known
        )
        for metrics in _chunks(new, _METRICS_A_CALL):
            self._client.log_batch(id, metrics=metrics)
            count += len(metrics)
        return count

    def _end(self, id: str, run: NewRun) -> None:
        if run.ended_ms is not None:
            self._client.set_terminated(id, run.status, run.ended_ms)
        elif run.continues is not None or run.status not in ("RUNNING", "SCHEDULED"):
            self._client.update_run(id, status=run.status)


Point = tuple[int, int, float | None]
"""Step, timestamp and value, None for NaN."""


def _point(step: int, time: int, value: float) -> Point:
    return step, time, None if math.isnan(value) else min(max(value, -LARGEST), LARGEST)


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
