"""One run in MLflow, to which the shipper writes. Only this module imports MLflow, and only once a `Store` is created."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from advisor import contract
from advisor_logging.spool import user_id
from advisor_logging.windows import Point

MAX_METRICS = 1000
MAX_PARAMS = 100
MAX_VALUE = 5000
"""Maximum characters of a tag or param value that MLflow servers of all versions accept."""


class StoredRun(NamedTuple):
    """State of a run in an MLflow store."""

    newest_ms: int
    """Time of the run's latest point in milliseconds; 0 if it has no points."""
    end_ms: int | None
    """End time of the run in milliseconds; None while it is active."""
    sidecar: str  # value of the run's sidecar tag


class Store:
    """Client of one MLflow tracking server or database. Every method can raise MLflow's errors."""

    def __init__(self, tracking_uri: str) -> None:
        import mlflow
        from mlflow.tracking import MlflowClient

        _fail_at_once(tracking_uri)
        mlflow.set_tracking_uri(tracking_uri)  # MLflow resolves artifact locations through the global address
        with one_at_a_time(tracking_uri):
            self._client = MlflowClient(tracking_uri)
            self._client.search_experiments(max_results=1)
        self._run_id = ""

    def open_run(self, run: Mapping[str, Any]) -> str:
        """Create the run that `run.json` describes, or find the one that an earlier attempt created. Return its id."""
        known = run.get("run_id")
        if known:
            self._client.get_run(known)
            if run["ends_run"]:
                self._client.update_run(known, status="RUNNING")
            self._run_id = str(known)
            return self._run_id
        experiment = self._experiment(run)
        matches = self._find_by_spool(experiment, run)
        if not matches:
            tags = {contract.TAG_SPOOL: run["spool"], **run["source_tags"]}
            matches = [self._client.create_run(experiment, run["start_ms"], tags=tags, run_name=run["run_name"])]
        self._run_id = str(matches[0].info.run_id)
        return self._run_id

    def find_run(self, run: Mapping[str, Any]) -> StoredRun | None:
        """Return the state of the run that `run.json` describes; None if that run was never created."""
        known = run.get("run_id")
        if known:
            match = self._client.get_run(known)
        else:
            id = _experiment_id(run)
            if id is None and (named := self._client.get_experiment_by_name(_experiment_name(run))) is not None:
                id = str(named.experiment_id)
            matches = self._find_by_spool(id, run) if id is not None else []
            if not matches:
                return None
            match = matches[0]
        newest = max((metric.timestamp for metric in match.data._metric_objs), default=0)
        return StoredRun(newest, match.info.end_time, match.data.tags.get(contract.TAG_SIDECAR, ""))

    def _find_by_spool(self, experiment: str, run: Mapping[str, Any]) -> list[Any]:
        mark = f"tags.`{contract.TAG_SPOOL}` = '{run['spool']}'"
        return list(self._client.search_runs([experiment], mark, max_results=1))

    def _experiment(self, run: Mapping[str, Any]) -> str:
        experiment_id = _experiment_id(run)
        if experiment_id is not None:
            return experiment_id
        name = _experiment_name(run)
        match = self._client.get_experiment_by_name(name)
        if match is not None:
            return str(match.experiment_id)
        from mlflow.exceptions import MlflowException

        try:
            return str(self._client.create_experiment(name))
        except MlflowException:
            match = self._client.get_experiment_by_name(name)  # another trial has just created the experiment
            if match is None:
                raise
            return str(match.experiment_id)

    def log_points(self, points: Sequence[Point]) -> None:
        """Store points. Points that the store already has stay unchanged."""
        # Before MLflow 3.16, a resent NaN violates the primary key and its batch fails, so NaNs get separate batches.
        finite = [p for p in points if not math.isnan(p.value)]
        nan = [p for p in points if math.isnan(p.value)]
        for i in range(0, len(finite), MAX_METRICS):
            self._log(finite[i : i + MAX_METRICS])
        for i in range(0, len(nan), MAX_METRICS):
            batch = nan[i : i + MAX_METRICS]
            try:
                self._log(batch)
            except Exception as error:
                if not _is_duplicate(error):
                    raise
                self._log_one_by_one(batch)

    def _log_one_by_one(self, points: Sequence[Point]) -> None:
        for point in points:
            try:
                self._log([point])
            except Exception as error:
                if not _is_duplicate(error):
                    raise

    def _log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        self._client.log_batch(self._run_id, metrics=[Metric(p.name, p.value, p.time_ms, p.step) for p in points])

    def log_params(self, params: Mapping[str, str]) -> list[str]:
        """Store hyperparameters. Return the names of those already stored with a different value, which is kept."""
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        entities = [Param(name, value[:MAX_VALUE]) for name, value in params.items()]
        refused = []
        for i in range(0, len(entities), MAX_PARAMS):
            batch = entities[i : i + MAX_PARAMS]
            try:
                self._client.log_batch(self._run_id, params=batch)
            except MlflowException as error:
                if error.error_code != "INVALID_PARAMETER_VALUE":
                    raise
                refused += [p.key for p in batch if not self._accepts(p)]
        return refused

    def _accepts(self, param: Any) -> bool:
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_batch(self._run_id, params=[param])
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            return False
        return True

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run, replacing existing values."""
        from mlflow.entities import RunTag

        entities = [RunTag(name, value[:MAX_VALUE]) for name, value in tags.items()]
        for i in range(0, len(entities), MAX_PARAMS):
            self._client.log_batch(self._run_id, tags=entities[i : i + MAX_PARAMS])

    def log_file(self, file: Path, path: str) -> None:
        """Store a file as the artifact `path`. The last part of `path` must be the file's own name."""
        self._client.log_artifact(self._run_id, str(file), path.rpartition("/")[0])

    def tag(self, name: str) -> str | None:
        """Return the value of a tag of the run; None if the tag is not set."""
        value = self._client.get_run(self._run_id).data.tags.get(name)
        return None if value is None else str(value)

    def end(self, status: str, time_ms: int) -> None:
        """End the run with the MLflow status FINISHED, FAILED or KILLED."""
        self._client.set_terminated(self._run_id, status, time_ms)


def _experiment_id(run: Mapping[str, Any]) -> str | None:
    """Return the experiment id from the run or from MLflow's variable; None if an experiment name takes precedence."""
    id = run.get("experiment_id") or (None if run.get("experiment") else os.environ.get("MLFLOW_EXPERIMENT_ID"))
    return None if id is None else str(id)


def _experiment_name(run: Mapping[str, Any]) -> str:
    return str(run.get("experiment") or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default")


@contextmanager
def one_at_a_time(tracking_uri: str) -> Iterator[None]:
    """Hold a lock while an SQLite store is opened: if two processes create its tables at once, they corrupt it permanently."""
    if not tracking_uri.startswith("sqlite:"):
        yield
        return
    from filelock import FileLock  # slow to import, and not needed by the trainer

    name = hashlib.sha256(tracking_uri.encode()).hexdigest()[0]  # one hex digit limits the number of lock files to 16
    with FileLock(Path(tempfile.gettempdir()) / f"advisor-{user_id()}-{name}.lock", mode=0o600):
        yield


def _fail_at_once(tracking_uri: str) -> None:
    # MLflow silently retries for 90 seconds if a database cannot be opened; our caller has its own retries.
    if tracking_uri.partition("://")[0].partition("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
        try:
            from mlflow.store.db import utils
        except ImportError as error:
            if "from 'sqlalchemy" not in str(error):
                raise
            raise ImportError(
                "MLflow before 3.9 opens no database with SQLAlchemy 2.1; run: pip install 'sqlalchemy<2.1'"
            ) from error
        utils.MAX_RETRY_COUNT = 1


def _is_duplicate(error: BaseException) -> bool:
    text = str(error).lower()
    return "integrityerror" in text or "unique constraint" in text or "duplicate" in text
