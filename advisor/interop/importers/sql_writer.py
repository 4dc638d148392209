"""Writes runs into MLflow's SQL stores through MLflow's own tables, thousands of rows a statement, whole runs a transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from advisor.interop.importers.writer import RENEWED_TAGS, TAG_SOURCE, TAG_STATE, Imported, NewPoints, NewRun, Written
from advisor.model.errors import AdvisorError
from advisor.model.space import BoolArray, FloatArray
from advisor.tracking.points.collect import LARGEST

_POINTS_A_TRANSACTION = 100_000
_RUNS_A_TRANSACTION = 500
_POINTS_A_STATEMENT = 20_000


class SqlWriter:
    """A `Writer` over an open `SqlAlchemyStore`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def imported(self, experiment: str) -> Mapping[str, Imported]:
        """See `Writer.imported`."""
        import sqlalchemy
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag

        known = self._existing(experiment)
        if known is None:
            return {}
        query: Any = (
            sqlalchemy.select(SqlTag.run_uuid, SqlTag.key, SqlTag.value)
            .join(SqlRun, SqlRun.run_uuid == SqlTag.run_uuid)
            .where(SqlRun.experiment_id == int(known.experiment_id), SqlRun.lifecycle_stage == "active")
            .where(sqlalchemy.or_(SqlTag.key == TAG_SOURCE, SqlTag.key == TAG_STATE))
        )
        with self._store.engine.connect() as connection:
            rows: list[tuple[str, str, str]] = list(connection.execute(query))
        states = {run: value for run, key, value in rows if key == TAG_STATE}
        return {value: Imported(run, states.get(run)) for run, key, value in rows if key == TAG_SOURCE}

    def write(self, experiment: str, tags: Mapping[str, str], runs: Iterable[NewRun], written: Written) -> None:
        """See `Writer.write`. One transaction a batch of whole runs, so that a run is there in full or not at all."""
        found = self._existing(experiment)
        if found is None:
            found = self._create(experiment, tags)
        else:
            self._renew_tags(found, tags)
        for batch in _batches(runs):
            added = self._insert(batch, int(found.experiment_id), found.artifact_location)
            for run, points in zip(batch, added, strict=True):
                written(run, points)

    def _existing(self, name: str) -> Any:
        found = self._store.get_experiment_by_name(name)
        if found is not None and found.lifecycle_stage != "active":
            raise AdvisorError(
                f"experiment {name!r} exists but was deleted; restore it with: "
                f"mlflow experiments restore -x {found.experiment_id}, or pass another --experiment"
            )
        return found

    def _create(self, name: str, tags: Mapping[str, str]) -> Any:
        from mlflow.entities import ExperimentTag

        id = self._store.create_experiment(name, tags=[ExperimentTag(k, v) for k, v in tags.items()])
        return self._store.get_experiment(id)

    def _renew_tags(self, experiment: Any, tags: Mapping[str, str]) -> None:
        from mlflow.entities import ExperimentTag

        for tag in RENEWED_TAGS:
            if tag in tags and experiment.tags.get(tag) != tags[tag]:
                self._store.set_experiment_tag(experiment.experiment_id, ExperimentTag(tag, tags[tag]))

    def _insert(self, batch: list[NewRun], experiment: int, artifacts: str) -> list[int]:
        """Write the runs in one transaction; gives how many points each got."""
        from mlflow.store.tracking.dbmodels import models

        new = [(run, uuid.uuid4().hex) for run in batch if run.continues is None]
        counts = []
        with self._store.engine.begin() as connection:
            for model, rows in (
                (models.SqlRun, [_run_row(run, id, experiment, artifacts) for run, id in new]),
                (models.SqlParam, [row for run, id in new for row in _text_rows(id, run.params)]),
                (models.SqlTag, [row for run, id in new for row in _text_rows(id, run.all_tags)]),
            ):
                if rows:
                    connection.execute(model.__table__.insert(), rows)
            ids = {id(run): run_id for run, run_id in new}
            for run in batch:
                if run.continues is None:
                    counts.append(_insert_points(connection, run, ids[id(run)]))
                else:
                    counts.append(_complete(connection, run, run.continues))
        return counts


def _batches(runs: Iterable[NewRun]) -> Iterator[list[NewRun]]:
    batch: list[NewRun] = []
    points = 0
    for run in runs:
        batch.append(run)
        points += sum(len(p.steps) for p in run.points.values())
        if points >= _POINTS_A_TRANSACTION or len(batch) >= _RUNS_A_TRANSACTION:
            yield batch
            batch, points = [], 0
    if batch:
        yield batch


def _run_row(run: NewRun, id: str, experiment: int, artifacts: str) -> dict[str, Any]:
    return {
        "run_uuid": id,
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
        "artifact_uri": f"{artifacts.rstrip('/')}/{id}/artifacts",
        "experiment_id": experiment,
    }


def _text_rows(run: str, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"run_uuid": run, "key": key, "value": value} for key, value in texts.items()]


Point = tuple[int, int, float, bool]
"""Step, timestamp, value and whether it stands for NaN, as a row of MLflow's has them."""


def _insert_points(connection: Any, run: NewRun, id: str) -> int:
    """Write the points, those that are there already left out, a piece at a time; gives how many."""
    from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric

    count = 0
    latest = []
    for metric, points in run.points.items():
        rows, last = _rows(points.distinct())
        known = _stored(connection, id, metric) if run.continues is not None else set()
        for start in range(0, len(rows.steps), _POINTS_A_STATEMENT):
            piece = [point for point in _piece(rows, start) if point not in known]
            count += len(piece)
            if piece:
                connection.execute(SqlMetric.__table__.insert(), [_metric_row(id, metric, p) for p in piece])
        latest.append(_metric_row(id, metric, max([last, *known])))
    if latest:
        connection.execute(SqlLatestMetric.__table__.insert(), latest)
    return count


def _stored(connection: Any, run: str, metric: str) -> set[Point]:
    from mlflow.store.tracking.dbmodels.models import SqlMetric

    columns = SqlMetric.__table__.c
    query = SqlMetric.__table__.select().with_only_columns(
        columns.step, columns.timestamp, columns.value, columns.is_nan
    )
    rows = connection.execute(query.where(columns.run_uuid == run, columns.key == metric))
    return {(step, time, value, bool(is_nan)) for step, time, value, is_nan in rows}


class _Rows(NamedTuple):
    """Points as MLflow writes them: NaN as a marked zero, infinity as the largest number."""

    steps: NDArray[np.int64]
    times: NDArray[np.int64]
    values: FloatArray
    nan: BoolArray


def _rows(points: NewPoints) -> tuple[_Rows, Point]:
    """The points as rows, and the one that counts as the latest."""
    nan = np.isnan(points.values)
    rows = _Rows(points.steps, points.times_ms, np.where(nan, 0.0, np.clip(points.values, -LARGEST, LARGEST)), nan)
    last = np.lexsort((rows.nan, rows.values, rows.times, rows.steps))[-1]
    return rows, next(_piece(rows, int(last)))


def _piece(rows: _Rows, start: int) -> Iterator[Point]:
    part = slice(start, start + _POINTS_A_STATEMENT)
    return zip(*(column[part].tolist() for column in rows), strict=True)


def _metric_row(run: str, metric: str, point: Point) -> dict[str, Any]:
    step, time, value, is_nan = point
    return {"run_uuid": run, "key": metric, "step": step, "timestamp": time, "value": value, "is_nan": is_nan}


def _complete(connection: Any, run: NewRun, id: str) -> int:
    """Add what the run in the store lacks, and renew its status and tags; gives how many points were added."""
    from mlflow.store.tracking.dbmodels import models

    params, tags, runs = models.SqlParam.__table__, models.SqlTag.__table__, models.SqlRun.__table__
    latest = models.SqlLatestMetric.__table__
    connection.execute(latest.delete().where(latest.c.run_uuid == id, latest.c.key.in_(list(run.points))))
    count = _insert_points(connection, run, id)
    known = set(
        connection.execute(params.select().with_only_columns(params.c.key).where(params.c.run_uuid == id)).scalars()
    )
    connection.execute(tags.delete().where(tags.c.run_uuid == id, tags.c.key.in_(list(run.all_tags))))
    for table, rows in (
        (params, _text_rows(id, {key: value for key, value in run.params.items() if key not in known})),
        (tags, _text_rows(id, run.all_tags)),
    ):
        if rows:
            connection.execute(table.insert(), rows)
    connection.execute(runs.update().where(runs.c.run_uuid == id).values(status=run.status, end_time=run.ended_ms))
    return count
