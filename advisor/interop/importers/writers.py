"""Writes imported runs into a tracking store. The next import deletes the incomplete runs of an interrupted import."""

from __future__ import annotations

import math
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from advisor import contract
from advisor.interop.importers.mlflow_runs import SOURCE_DIGEST_TAG, SOURCE_RUN_TAG, UNFINISHED_RUN_PREFIX, NewRun, source_text
from advisor.model.errors import AdvisorError
from advisor.tracking.points.collect import STORED_INFINITY
from advisor.tracking.stores import client, sqlite
from advisor.tracking.stores.location import StoreLocation

_METRICS_PER_CALL = 1000
_PARAMS_PER_CALL = 100
_MAX_THREADS = 4
_POINTS_PER_TRANSACTION = 100_000
_RUNS_PER_TRANSACTION = 500
_POINTS_PER_STATEMENT = 20_000

Point = tuple[int, int, float, bool]
"""(step, timestamp, value, whether NaN) of a metric point. MLflow stores NaN as 0, and infinity as the largest float."""
RunWrittenCallback = Callable[[NewRun, int], None]
"""Callback that receives each stored run and the number of metric points that were written to the run."""


@dataclass(frozen=True, slots=True)
class ImportedRun:
    run_id: str
    files_digest: str | None
    """Digest of the run's source files at the last import, or None if it was not stored."""


class RunWriter(ABC):
    def __init__(self, store: Any) -> None:
        self._store = store

    def imported_runs(self, experiment: str) -> Mapping[str, ImportedRun]:
        """Return the runs that earlier imports wrote into the experiment, if it exists, by their identifier in the source."""
        active_experiment = self._active_experiment(experiment)
        tags = {} if active_experiment is None else self._tags_of_runs(active_experiment.experiment_id)
        return {t[SOURCE_RUN_TAG]: ImportedRun(run, t.get(SOURCE_DIGEST_TAG)) for run, t in tags.items() if SOURCE_RUN_TAG in t}

    def write(self, name: str, tags: Mapping[str, str], runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        """Write runs into an experiment, which is created if missing, and replace its study file."""
        experiment = self._active_experiment(name)
        if experiment is None:
            experiment = self._store.get_experiment(self._create_experiment(name, tags))
        study_file = tags.get(contract.TAG_STUDY_FILE)
        if study_file is not None and experiment.tags.get(contract.TAG_STUDY_FILE) != study_file:
            self._replace_study_file(experiment.experiment_id, study_file)
        self._write_runs(experiment, runs, on_written)

    def _active_experiment(self, name: str) -> Any:
        experiment = self._store.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage != "active":
            raise AdvisorError(
                f"experiment {name!r} exists but was deleted; restore it with: "
                f"mlflow experiments restore -x {experiment.experiment_id}, or pass another --experiment"
            )
        return experiment

    @abstractmethod
    def _create_experiment(self, name: str, tags: Mapping[str, str]) -> str:
        """Return the id of the new experiment."""

    @abstractmethod
    def _replace_study_file(self, experiment_id: str, text: str) -> None:
        """Replace the study file in the experiment's tags."""

    @abstractmethod
    def _tags_of_runs(self, experiment_id: str) -> Mapping[str, Mapping[str, str]]:
        """Return the tags of each run that is not deleted, by run id."""

    @abstractmethod
    def _write_runs(self, experiment: Any, runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        """Write the runs into the experiment."""


class ClientWriter(RunWriter):
    """Writes runs to tracking servers and file stores. A tag marks a new run as unfinished until all its data are stored."""

    def __init__(self, location: StoreLocation) -> None:
        with client.quiet_mlflow(client.FIRST_REQUEST_SETTINGS):
            self._client = client.open_client(location)
            if location.kind == "files" and location.path is not None:
                (location.path / ".trash").mkdir(exist_ok=True)  # MLflow refuses to write runs if this folder is missing
            self._client.search_experiments(max_results=1)
        super().__init__(self._client)
        self._threads = 1 if location.kind == "files" else _MAX_THREADS

    def write(self, name: str, tags: Mapping[str, str], runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        with client.quiet_mlflow(client.LATER_REQUEST_SETTINGS):
            super().write(name, tags, runs, on_written)

    def _create_experiment(self, name: str, tags: Mapping[str, str]) -> str:
        return str(self._client.create_experiment(name, tags=dict(tags)))

    def _replace_study_file(self, experiment_id: str, text: str) -> None:
        self._client.set_experiment_tag(experiment_id, contract.TAG_STUDY_FILE, text)

    def _tags_of_runs(self, experiment_id: str) -> Mapping[str, Mapping[str, str]]:
        tags = {}
        page_token: str | None = ""
        while page_token is not None:
            run_page = self._client.search_runs([experiment_id], max_results=1000, page_token=page_token or None)
            tags.update({run.info.run_id: run.data.tags for run in run_page})
            page_token = run_page.token or None
        return tags

    def _write_runs(self, experiment: Any, runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        for run_id, tags in self._tags_of_runs(experiment.experiment_id).items():
            if tags.get(SOURCE_RUN_TAG, "").startswith(UNFINISHED_RUN_PREFIX):
                self._client.delete_run(run_id)
        remaining_runs = iter(runs)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="advisor-write") as pool:

            def submit(count: int) -> set[Any]:  # at most one run per thread is in memory
                return {pool.submit(self._write_run, experiment.experiment_id, run) for run in islice(remaining_runs, count)}

            active = submit(self._threads)
            while active:
                done, active = wait(active, return_when=FIRST_COMPLETED)
                for future in done:
                    on_written(*future.result())
                active |= submit(len(done))

    def _write_run(self, experiment_id: str, run: NewRun) -> tuple[NewRun, int]:
        """Write a new run, or add the missing data to a stored run. Return (run, number of metric points sent)."""
        source_key = source_text(run.source)
        if run.stored_run_id is None:
            tags = {**run.tags, SOURCE_RUN_TAG: UNFINISHED_RUN_PREFIX + source_key}
            mlflow_run = self._client.create_run(experiment_id, start_time=run.started_ms, tags=tags, run_name=run.name)
            final_tags = {SOURCE_RUN_TAG: source_key}
        else:
            mlflow_run = self._client.get_run(run.stored_run_id)
            final_tags = {tag: value for tag, value in run.tags.items() if mlflow_run.data.tags.get(tag) != value}
        run_id = mlflow_run.info.run_id
        point_count = self._send_data(run_id, run, mlflow_run.data)
        if run.ended_ms is not None:
            self._client.set_terminated(run_id, run.status, run.ended_ms)
        elif run.stored_run_id is not None or run.status not in ("RUNNING", "SCHEDULED"):
            self._client.update_run(run_id, status=run.status)
        for tag, value in final_tags.items():
            self._client.set_tag(run_id, tag, value)
        return run, point_count

    def _send_data(self, run_id: str, run: NewRun, stored: Any) -> int:
        """Send the parameters and metric points that are not yet stored. Return the number of metric points sent."""
        from mlflow.entities import Metric, Param

        params = [Param(key, value) for key, value in run.params.items() if key not in stored.params]
        for chunk in _split_into_chunks(params, _PARAMS_PER_CALL):
            self._client.log_batch(run_id, params=chunk)

        def missing_points() -> Iterator[Metric]:
            for metric, points in run.points.items():
                history = self._client.get_metric_history(run_id, metric) if metric in stored.metrics else ()
                stored_points = {_comparable_point(m.step, m.timestamp, m.value) for m in history}
                p = points.distinct()
                for step, time, value in zip(p.steps.tolist(), p.times_ms.tolist(), p.values.tolist(), strict=True):
                    if not stored_points or _comparable_point(step, time, value) not in stored_points:
                        yield Metric(metric, value, time, step)

        sent_count = 0
        for chunk in _split_into_chunks(missing_points(), _METRICS_PER_CALL):
            self._client.log_batch(run_id, metrics=chunk)
            sent_count += len(chunk)
        return sent_count


def _comparable_point(step: int, time: int, value: float) -> tuple[int, int, float | None]:
    return step, time, None if math.isnan(value) else min(max(value, -STORED_INFINITY), STORED_INFINITY)


def _split_into_chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining_items = iter(items)
    while chunk := list(islice(remaining_items, size)):
        yield chunk


class SqlWriter(RunWriter):
    """Writes runs directly into MLflow's SQL tables, ten or more times as fast as MLflow's client."""

    def __init__(self, location: StoreLocation) -> None:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        super().__init__(SqlAlchemyStore(location.uri, _check_database_writable(location)))  # type: ignore[no-untyped-call]

    def _create_experiment(self, name: str, tags: Mapping[str, str]) -> str:
        from mlflow.entities import ExperimentTag

        return str(self._store.create_experiment(name, None, [ExperimentTag(key, value) for key, value in tags.items()]))

    def _replace_study_file(self, experiment_id: str, text: str) -> None:
        from mlflow.entities import ExperimentTag

        self._store.set_experiment_tag(experiment_id, ExperimentTag(contract.TAG_STUDY_FILE, text))

    def _tags_of_runs(self, experiment_id: str) -> Mapping[str, Mapping[str, str]]:
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag

        run, tag = SqlRun.__table__, SqlTag.__table__
        query = tag.select().join(run, run.c.run_uuid == tag.c.run_uuid)
        query = query.where(run.c.experiment_id == int(experiment_id), run.c.lifecycle_stage == "active")
        tags: dict[str, dict[str, str]] = {}
        with self._store.engine.connect() as connection:
            for row in connection.execute(query.where(tag.c.key.in_([SOURCE_RUN_TAG, SOURCE_DIGEST_TAG]))):
                tags.setdefault(row.run_uuid, {})[row.key] = row.value
        return tags

    def _write_runs(self, experiment: Any, runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        remaining_runs = iter(runs)
        while batch := _next_transaction(remaining_runs):
            with self._store.engine.begin() as connection:
                counts = _insert_runs(connection, batch, experiment)
            for run, count in zip(batch, counts, strict=True):
                on_written(run, count)


def _check_database_writable(location: StoreLocation) -> str:
    """Return the folder under which new experiments store their artifacts. Raise AdvisorError if the database is not writable."""
    if location.path is None:
        client.check_database(location)
        return "./mlruns"
    folder = location.path.parent
    if not folder.is_dir():
        raise AdvisorError(f"cannot create {location.path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise AdvisorError(f"cannot write to {folder}: permission denied")
    if location.path.exists() and location.path.stat().st_size:
        sqlite.check_writable(location)
    return str(folder / "mlruns")


def _next_transaction(runs: Iterator[NewRun]) -> list[NewRun]:
    batch: list[NewRun] = []
    point_count = 0
    for run in islice(runs, _RUNS_PER_TRANSACTION):
        batch.append(run)
        point_count += sum(len(p.steps) for p in run.points.values())
        if point_count >= _POINTS_PER_TRANSACTION:
            break
    return batch


def _insert_runs(connection: Any, batch: list[NewRun], experiment: Any) -> list[int]:
    """Write a batch of runs. Return the number of metric points written to each run."""
    from mlflow.store.tracking.dbmodels import models

    ids = [run.stored_run_id or uuid.uuid4().hex for run in batch]
    new = [(run, run_id) for run, run_id in zip(batch, ids, strict=True) if run.stored_run_id is None]
    _insert(connection, models.SqlRun, [_run_row(run, run_id, experiment) for run, run_id in new])
    _insert_texts(connection, models.SqlParam, [(run_id, run.params) for run, run_id in new])
    _insert_texts(connection, models.SqlTag, [(run_id, run.all_tags) for run, run_id in new])
    return [
        _insert_points(connection, run, run_id) if run.stored_run_id is None else _complete_run(connection, run, run_id)
        for run, run_id in zip(batch, ids, strict=True)
    ]


def _insert(connection: Any, model: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(model.__table__.insert(), rows)


def _insert_texts(connection: Any, model: Any, texts: list[tuple[str, Mapping[str, str]]]) -> None:
    rows = [{"run_uuid": id, "key": key, "value": value} for id, of_run in texts for key, value in of_run.items()]
    _insert(connection, model, rows)


def _run_row(run: NewRun, run_id: str, experiment: Any) -> dict[str, Any]:
    return {
        **dict.fromkeys(("source_name", "entry_point_name", "source_version"), ""),
        "run_uuid": run_id,
        "name": run.name,
        "source_type": "UNKNOWN",
        "user_id": "unknown",
        "status": run.status,
        "start_time": run.started_ms,
        "end_time": run.ended_ms,
        "lifecycle_stage": "active",
        "artifact_uri": f"{experiment.artifact_location.rstrip('/')}/{run_id}/artifacts",
        "experiment_id": int(experiment.experiment_id),
    }


def _insert_points(connection: Any, run: NewRun, run_id: str) -> int:
    """Write the metric points of a run that are not yet stored. Return the number of metric points written."""
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric

    table = SqlMetric.__table__
    query = table.select().with_only_columns(table.c.step, table.c.timestamp, table.c.value, table.c.is_nan)
    inserted_count = 0
    latest_rows = []
    for metric, points in run.points.items():
        p = points.distinct()
        nan = np.isnan(p.values)
        columns = (p.steps, p.times_ms, np.where(nan, 0.0, np.clip(p.values, -STORED_INFINITY, STORED_INFINITY)), nan)
        stored_points: set[Point] = set()
        if run.stored_run_id is not None:
            stored_rows = connection.execute(query.where(table.c.run_uuid == run_id, table.c.key == metric))
            stored_points = {(step, time, value, bool(is_nan)) for step, time, value, is_nan in stored_rows}
        for start in range(0, len(columns[0]), _POINTS_PER_STATEMENT):
            point_slice = zip(*(column[start : start + _POINTS_PER_STATEMENT].tolist() for column in columns), strict=True)
            new_rows = [_metric_row(run_id, metric, point) for point in point_slice if point not in stored_points]
            inserted_count += len(new_rows)
            _insert(connection, SqlMetric, new_rows)
        last = np.lexsort(columns[::-1])[-1]
        latest_rows.append(_metric_row(run_id, metric, max([tuple(column[last].item() for column in columns), *stored_points])))
    _insert(connection, SqlLatestMetric, latest_rows)
    return inserted_count


def _metric_row(run_id: str, metric: str, point: Any) -> dict[str, Any]:
    step, time, value, is_nan = point
    return {"run_uuid": run_id, "key": metric, "step": step, "timestamp": time, "value": value, "is_nan": is_nan}


def _complete_run(connection: Any, run: NewRun, run_id: str) -> int:
    """Add the missing data to a stored run, and update its status and tags. Return the number of metric points added."""
    from mlflow.store.tracking.dbmodels import models

    params, tags, runs = models.SqlParam.__table__, models.SqlTag.__table__, models.SqlRun.__table__
    latest_table = models.SqlLatestMetric.__table__
    connection.execute(latest_table.delete().where(latest_table.c.run_uuid == run_id, latest_table.c.key.in_(list(run.points))))
    added_count = _insert_points(connection, run, run_id)
    query = params.select().with_only_columns(params.c.key).where(params.c.run_uuid == run_id)
    stored_keys = set(connection.execute(query).scalars())
    missing_params = {key: value for key, value in run.params.items() if key not in stored_keys}
    _insert_texts(connection, models.SqlParam, [(run_id, missing_params)])
    connection.execute(tags.delete().where(tags.c.run_uuid == run_id, tags.c.key.in_(list(run.all_tags))))
    _insert_texts(connection, models.SqlTag, [(run_id, run.all_tags)])
    connection.execute(runs.update().where(runs.c.run_uuid == run_id).values(status=run.status, end_time=run.ended_ms))
    return added_count
