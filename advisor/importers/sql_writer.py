"""Writes runs into MLflow's SQL stores through MLflow's own tables, thousands of rows a statement, whole runs a transaction."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.importers.writer import TAG_SOURCE, NewPoints, NewRun
from advisor.tracking.collect import LARGEST

_POINTS_A_TRANSACTION = 100_000
_RUNS_A_TRANSACTION = 500


class SqlWriter:
    """A `Writer` over an open `SqlAlchemyStore`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def imported(self, experiment: str) -> set[str]:
        """See `Writer.imported`."""
        import sqlalchemy
        from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag

        known = self._existing(experiment)
        if known is None:
            return set()
        query: Any = (
            sqlalchemy.select(SqlTag.value)
            .join(SqlRun, SqlRun.run_uuid == SqlTag.run_uuid)
            .where(SqlRun.experiment_id == int(known.experiment_id), SqlRun.lifecycle_stage == "active")
            .where(SqlTag.key == TAG_SOURCE)
        )
        with self._store.engine.connect() as connection:
            return {value for (value,) in connection.execute(query)}

    def write(
        self, experiment: str, tags: Mapping[str, str], runs: Iterable[NewRun], written: Callable[[], None]
    ) -> None:
        """See `Writer.write`. One transaction a batch of whole runs, so that a run is there in full or not at all."""
        found = self._existing(experiment) or self._create(experiment, tags)
        for batch in _batches(runs):
            self._insert(batch, int(found.experiment_id), found.artifact_location)
            for _ in batch:
                written()

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

    def _insert(self, batch: list[NewRun], experiment: int, artifacts: str) -> None:
        from mlflow.store.tracking.dbmodels import models

        rows: dict[Any, list[dict[str, Any]]] = {
            model.__table__: []
            for model in (models.SqlRun, models.SqlParam, models.SqlTag, models.SqlMetric, models.SqlLatestMetric)
        }
        run_rows, param_rows, tag_rows, metric_rows, latest_rows = rows.values()
        for run in batch:
            id = uuid.uuid4().hex
            run_rows.append(_run_row(run, id, experiment, artifacts))
            param_rows += [{"run_uuid": id, "key": k, "value": v} for k, v in run.params.items()]
            tag_rows += [{"run_uuid": id, "key": k, "value": v} for k, v in run.all_tags.items()]
            for metric, points in run.points.items():
                of_metric = _metric_rows(id, metric, points)
                metric_rows += of_metric
                latest_rows += [max(of_metric, key=lambda row: (row["step"], row["timestamp"], row["value"]))]
        with self._store.engine.begin() as connection:
            for table, values in rows.items():
                if values:
                    connection.execute(table.insert(), values)


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


def _metric_rows(run: str, metric: str, points: NewPoints) -> list[dict[str, Any]]:
    """Rows as MLflow writes them: NaN as a marked zero, infinity as the largest number, the same point only once."""
    nan = np.isnan(points.values)
    values = np.where(nan, 0.0, np.clip(points.values, -LARGEST, LARGEST))
    columns = (points.steps.tolist(), points.times_ms.tolist(), values.tolist(), nan.tolist())
    return [
        {"run_uuid": run, "key": metric, "step": step, "timestamp": time, "value": value, "is_nan": is_nan}
        for step, time, value, is_nan in dict.fromkeys(zip(*columns, strict=True))
    ]
