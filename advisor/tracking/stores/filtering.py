"""Applies MLflow's filter strings to runs that were read by SQL; MLflow's own code does the matching."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from advisor.model.errors import AdvisorError
from advisor.tracking.stores.client import filter_error, quiet_mlflow

_QUERIES_BY_ENTITY = {
    "parameter": "SELECT t.run_uuid, t.key, t.value, 0 FROM params t WHERE t.key = ?",
    "tag": "SELECT t.run_uuid, t.key, t.value, 0 FROM tags t WHERE t.key = ?",
    "metric": "SELECT t.run_uuid, t.key, t.value, t.is_nan FROM latest_metrics t WHERE t.key = ?",
}


QueryFunction: TypeAlias = Callable[..., Iterable[tuple[Any, ...]]]
"""Function (query, *values) that returns the rows of an SQL query with one `?` per value."""


def filter_runs(query: QueryFunction, rows: Sequence[tuple[Any, ...]], filter: str) -> list[tuple[Any, ...]]:
    """Return the rows (id, name, status, start, end, artifact folder, user) of the runs that match the filter."""
    with quiet_mlflow():
        from mlflow.exceptions import MlflowException
        from mlflow.utils.search_utils import SearchUtils

        try:
            clauses = SearchUtils.parse_search_filter(filter)  # type: ignore[no-untyped-call]
            runs = _as_mlflow_runs(query, rows, clauses)
            matching_ids = {run.info.run_id for run in SearchUtils.filter(runs, filter)}  # type: ignore[no-untyped-call]
        except MlflowException as error:
            raise filter_error(filter, error) from error
    return [row for row in rows if row[0] in matching_ids]


def _as_mlflow_runs(query: QueryFunction, rows: Sequence[tuple[Any, ...]], clauses: Sequence[Mapping[str, Any]]) -> list[Any]:
    from mlflow.entities import LifecycleStage, Metric, Param, Run, RunData, RunInfo, RunTag

    values: dict[str, dict[str, list[Any]]] = {kind: {} for kind in _QUERIES_BY_ENTITY}
    for kind, key in sorted({(clause["type"], clause["key"]) for clause in clauses}):
        if kind == "dataset":
            raise AdvisorError("--filter on datasets requires a tracking server; pass its http:// address")
        if kind not in _QUERIES_BY_ENTITY:
            continue
        for run, name, value, is_nan in query(_QUERIES_BY_ENTITY[kind], key):
            if name == key:  # most MySQL databases ignore case
                values[kind].setdefault(run, []).append((key, math.nan if is_nan else value))
    runs = []
    for id, name, status, start, end, artifacts, user in rows:
        # MLflow's objects require a start time.
        info = RunInfo(id, "", user or "", status, start or 0, end, LifecycleStage.ACTIVE, artifacts, run_name=name)
        metrics = [Metric(k, v, 0, 0) for k, v in values["metric"].get(id, ())]
        params = [Param(k, v) for k, v in values["parameter"].get(id, ())]
        tags = [RunTag(k, v) for k, v in values["tag"].get(id, ())]
        runs.append(Run(info, RunData(metrics=metrics, params=params, tags=tags)))
    return runs
