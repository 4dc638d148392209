"""Writes runs directly into MLflow's SQL tables. Each SQL statement writes thousands of rows, and each transaction contains
complete runs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.interop.importers.mlflow_runs import SOURCE_DIGEST_TAG, SOURCE_RUN_TAG, NewRun
from advisor.interop.importers.points import MetricPoints
from advisor.interop.importers.writer import RunWriter, RunWrittenCallback
from advisor.model.errors import AdvisorError
from advisor.model.space import BoolArray, FloatArray
from advisor.tracking.points.collect import LARGEST_FLOAT
from advisor.tracking.stores import sqlite
from advisor.tracking.stores.client import check_database
from advisor.tracking.stores.location import StoreLocation

_POINTS_PER_TRANSACTION = 100_000
_RUNS_PER_TRANSACTION = 500
_POINTS_PER_STATEMENT = 20_000

Point = tuple[int, int, float, bool]
"""(Step, timestamp, value, True for NaN) of a metric point, as in the metrics table of MLflow."""


class SqlWriter(RunWriter):
    """Writes runs with MLflow's `SqlAlchemyStore`. If the SQLite file is missing, it is created."""

    def __init__(self, location: StoreLocation) -> None:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        self._store: Any = SqlAlchemyStore(location.uri, _artifact_root(location))  # type: ignore[no-untyped-call]

    def _find_experiment(self, name: str) -> Any:
        return self._store.get_experiment_by_name(name)

    def _create_experiment(self, name: str, tags: Mapping[str, str]) -> Any:
        from mlflow.entities import ExperimentTag

        created = self._store.create_experiment(name, tags=[ExperimentTag(k, v) for k, v in tags.items()])
        return self._store.get_experiment(created)

    def _set_tag(self, experiment_id: str, tag: str, value: str) -> None:
        from mlflow.entities import ExperimentTag

        self._store.set_experiment_tag(experiment_id, ExperimentTag(tag, value))

    def _tags_of_runs(self, experiment_id: str) -> Mapping[str, Mapping[str, str]]:
        import sqlalchemy
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag

        query: Any = (
            sqlalchemy.select(SqlTag.run_uuid, SqlTag.key, SqlTag.value)
            .join(SqlRun, SqlRun.run_uuid == SqlTag.run_uuid)
            .where(SqlRun.experiment_id == int(experiment_id), SqlRun.lifecycle_stage == "active")
            .where(sqlalchemy.or_(SqlTag.key == SOURCE_RUN_TAG, SqlTag.key == SOURCE_DIGEST_TAG))
        )
        tags: dict[str, dict[str, str]] = {}
        with self._store.engine.connect() as connection:
            for run, key, value in connection.execute(query):
                tags.setdefault(run, {})[key] = value
        return tags

    def _write_runs(self, experiment: Any, runs: Iterable[NewRun], on_written: RunWrittenCallback) -> None:
        for batch in _split_into_transactions(runs):
            with self._store.engine.begin() as connection:
                counts = _insert_runs(connection, batch, int(experiment.experiment_id), experiment.artifact_location)
            for run, count in zip(batch, counts, strict=True):
                on_written(run, count)


def _artifact_root(location: StoreLocation) -> str:
    """Return the folder or URI under which new experiments store their artifacts. Raise AdvisorError if the database of the
    tracking store is not writable."""
    if location.path is None:
        check_database(location)
        return "./mlruns"
    folder = location.path.parent
    if not folder.is_dir():
        raise AdvisorError(f"cannot create {location.path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise AdvisorError(f"cannot write to {folder}: permission denied")
    if location.path.exists() and location.path.stat().st_size:
        sqlite.check_writable(location)
    return str(folder / "mlruns")


def _split_into_transactions(runs: Iterable[NewRun]) -> Iterator[list[NewRun]]:
    batch: list[NewRun] = []
    points = 0
    for run in runs:
        batch.append(run)
        points += sum(len(p.steps) for p in run.points.values())
        if points >= _POINTS_PER_TRANSACTION or len(batch) >= _RUNS_PER_TRANSACTION:
            yield batch
            batch, points = [], 0
    if batch:
        yield batch


def _insert_runs(connection: Any, batch: list[NewRun], experiment: int, artifacts: str) -> list[int]:
    """Write a batch of runs. Return the number of metric points written to each run."""
    from mlflow.store.tracking.dbmodels import models

    ids = [run.stored_run_id or uuid.uuid4().hex for run in batch]
    new = [(run, run_id) for run, run_id in zip(batch, ids, strict=True) if run.stored_run_id is None]
    for model, rows in (
        (models.SqlRun, [_run_row(run, run_id, experiment, artifacts) for run, run_id in new]),
        (models.SqlParam, [row for run, run_id in new for row in _key_value_rows(run_id, run.params)]),
        (models.SqlTag, [row for run, run_id in new for row in _key_value_rows(run_id, run.all_tags)]),
    ):
        if rows:
            connection.execute(model.__table__.insert(), rows)
    return [
        _insert_points(connection, run, run_id) if run.stored_run_id is None else _complete_run(connection, run, run_id)
        for run, run_id in zip(batch, ids, strict=True)
    ]


def _run_row(run: NewRun, run_id: str, experiment: int, artifacts: str) -> dict[str, Any]:
    return {
        "run_uuid": run_id,
        "name": run.name,
        "source_type": "UNKNOWN",
        "source_name": "",
        "entry_point_name": "",
        "user_id": "unknown",
        "status": run.status,
        "start_time": run.started_ms,
        "end_time": run.ended_ms,
        "source_version": "",
        "lifecycle_stage": "active",
        "artifact_uri": f"{artifacts.rstrip('/')}/{run_id}/artifacts",
        "experiment_id": experiment,
    }


def _key_value_rows(run_id: str, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"run_uuid": run_id, "key": key, "value": value} for key, value in texts.items()]


def _insert_points(connection: Any, run: NewRun, run_id: str) -> int:
    """Write the metric points of a run that are not yet stored. Return the number of metric points written."""
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric

    count = 0
    latest = []
    for metric, points in run.points.items():
        rows, last = _encode_points(points.distinct())
        stored = _read_stored_points(connection, run_id, metric) if run.stored_run_id is not None else set()
        for start in range(0, len(rows.steps), _POINTS_PER_STATEMENT):
            chunk = [point for point in _points_of_statement(rows, start) if point not in stored]
            count += len(chunk)
            if chunk:
                connection.execute(SqlMetric.__table__.insert(), [_metric_row(run_id, metric, p) for p in chunk])
        latest.append(_metric_row(run_id, metric, max([last, *stored])))
    if latest:
        connection.execute(SqlLatestMetric.__table__.insert(), latest)
    return count


def _read_stored_points(connection: Any, run_id: str, metric: str) -> set[Point]:
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    table = SqlMetric.__table__
    query = table.select().with_only_columns(table.c.step, table.c.timestamp, table.c.value, table.c.is_nan)
    rows = connection.execute(query.where(table.c.run_uuid == run_id, table.c.key == metric))
    return {(step, time, value, bool(is_nan)) for step, time, value, is_nan in rows}


class _EncodedPoints(NamedTuple):
    """Metric points in the encoding of MLflow's SQL tables: NaN is stored as zero with a flag, and infinity as the largest
    finite float."""

    steps: NDArray[np.int64]
    times: NDArray[np.int64]
    values: FloatArray
    nan: BoolArray


def _encode_points(points: MetricPoints) -> tuple[_EncodedPoints, Point]:
    """Return the points in the encoding of MLflow's SQL tables, and the point that MLflow treats as the latest one."""
    nan = np.isnan(points.values)
    rows = _EncodedPoints(
        points.steps, points.times_ms, np.where(nan, 0.0, np.clip(points.values, -LARGEST_FLOAT, LARGEST_FLOAT)), nan
    )
    last = np.lexsort((rows.nan, rows.values, rows.times, rows.steps))[-1]
    return rows, next(_points_of_statement(rows, int(last)))


def _points_of_statement(rows: _EncodedPoints, start: int) -> Iterator[Point]:
    part = slice(start, start + _POINTS_PER_STATEMENT)
    return zip(*(column[part].tolist() for column in rows), strict=True)


def _metric_row(run_id: str, metric: str, point: Point) -> dict[str, Any]:
    step, time, value, is_nan = point
    return {"run_uuid": run_id, "key": metric, "step": step, "timestamp": time, "value": value, "is_nan": is_nan}


def _complete_run(connection: Any, run: NewRun, run_id: str) -> int:
    """Add the missing data to a stored run, and update its status and tags. Return the number of metric points added."""
    from mlflow.store.tracking.dbmodels import models

    params, tags, runs = models.SqlParam.__table__, models.SqlTag.__table__, models.SqlRun.__table__
    latest = models.SqlLatestMetric.__table__
    connection.execute(latest.delete().where(latest.c.run_uuid == run_id, latest.c.key.in_(list(run.points))))
    count = _insert_points(connection, run, run_id)
    query = params.select().with_only_columns(params.c.key).where(params.c.run_uuid == run_id)
    stored = set(connection.execute(query).scalars())
    connection.execute(tags.delete().where(tags.c.run_uuid == run_id, tags.c.key.in_(list(run.all_tags))))
    for table, rows in (
        (params, _key_value_rows(run_id, {key: value for key, value in run.params.items() if key not in stored})),
        (tags, _key_value_rows(run_id, run.all_tags)),
    ):
        if rows:
            connection.execute(table.insert(), rows)
    connection.execute(runs.update().where(runs.c.run_uuid == run_id).values(status=run.status, end_time=run.ended_ms))
    return count
