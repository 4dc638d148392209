"""Writes one run to MLflow; the shipper process uses it. Only this module imports MLflow, and only when a client is created."""

from __future__ import annotations

import errno
import gc
import hashlib
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from advisor import contract
from advisor.contract.redact import one_line_error
from advisor_logging.limits import MAX_NAME_CHARS, MAX_VALUE_CHARS, clean_name, clean_text
from advisor_logging.spool import user_id
from advisor_logging.table import MetricPoint

MAX_METRICS_PER_REQUEST = 1000
MAX_PARAMS_PER_REQUEST = 100
_REQUEST_RETRY_PAUSES_S = (0.5, 1.0, 2.0, 4.0)
"""Seconds between two attempts to write one value if the store's error may be temporary."""
MAX_REFUSALS_PER_METRIC = 3
"""If the store refuses this many values of a metric and accepts none, the other values of the metric are not sent."""
MAX_DUPLICATE_RUNS = 50
"""Maximum number of results of a search for the MLflow runs that belong to one spool."""
_TEMPORARY_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ETIMEDOUT)
_REFUSED_METRIC_PREFIX = "metric "
_REFUSAL_CODES = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "MALFORMED_REQUEST")
_REFUSED_FILE_NAME_ERRNOS = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""Errors of a file store if a name is not a valid file name, or is already used for a folder."""


class StoredRunState(NamedTuple):
    """State of a run in an MLflow store."""

    latest_point_ms: int
    """Time of the latest point in the MLflow run (milliseconds since 1970); 0 if the run has no points."""
    end_ms: int | None
    """End time of the MLflow run (milliseconds since 1970); None while the run is active."""
    sidecar: str  # current value of the run's sidecar tag


class MlflowStore:
    """Client of one MLflow tracking server or database. Every method can raise MLflow's errors."""

    def __init__(self, tracking_uri: str) -> None:
        with _garbage_collection_disabled():
            import mlflow
            from mlflow.tracking import MlflowClient

            _disable_connect_retries(tracking_uri)
            mlflow.set_tracking_uri(tracking_uri)  # MLflow resolves artifact locations through the global tracking URI
            with lock_store_opening(tracking_uri):
                self._client = MlflowClient(tracking_uri)
                self._client.search_experiments(max_results=1)
        self._run_id = ""
        self.experiment_id = ""
        """Id of the run's experiment; empty before `open_run` is called."""
        self._may_have_duplicates = False
        """Whether duplicate runs of the same spool may exist, because the run's id was unknown."""
        self._is_file_store = "://" not in tracking_uri or tracking_uri.startswith("file:")
        self.refusal_counts: Counter[str] = Counter()
        """Number of values that the store refused, by kind and name, such as "metric val/error"."""
        self.refusal_reasons: dict[str, str] = {}
        """The store's error for the first refused value of each kind and name, as one line."""
        self._accepted: set[str] = set()

    def open_run(self, run: Mapping[str, Any], remembered_run_id: str | None = None) -> str:
        """Return the id of the run that `run.json` describes; create the run unless an earlier attempt created it.
        remembered_run_id: id of the run that an earlier attempt created, if known."""
        known_run_id = run.get("run_id")
        if known_run_id:
            self.experiment_id = str(self._client.get_run(known_run_id).info.experiment_id)
            if run["ends_run"]:
                self._client.update_run(known_run_id, status="RUNNING")
            self._run_id = str(known_run_id)
            return self._run_id
        experiment = self.experiment_id = self._find_or_create_experiment(run)
        self._may_have_duplicates = True
        matches = self._find_by_spool(experiment, run)
        matches.sort(key=lambda match: match.info.run_id != remembered_run_id)
        if not matches:
            tags = {contract.TAG_SPOOL: run["spool"], **_clean_texts(run["source_tags"])}
            name = None if run["run_name"] is None else clean_name(run["run_name"])
            matches = [self._client.create_run(experiment, max(run["start_ms"], 0), tags=tags, run_name=name)]
        self._run_id = str(matches[0].info.run_id)
        return self._run_id

    def find_run(self, run: Mapping[str, Any]) -> StoredRunState | None:
        """Return the state of the MLflow run that `run.json` describes; None if that run was never created."""
        known_run_id = run.get("run_id")
        if known_run_id:
            match = self._client.get_run(known_run_id)
        else:
            id = _experiment_id(run)
            if id is None and (named_experiment := self._client.get_experiment_by_name(_experiment_name(run))) is not None:
                id = str(named_experiment.experiment_id)
            matches = self._find_by_spool(id, run) if id is not None else []
            if not matches:
                return None
            match = matches[0]
        latest_point_ms = max((metric.timestamp for metric in match.data._metric_objs), default=0)
        return StoredRunState(latest_point_ms, match.info.end_time, match.data.tags.get(contract.TAG_CURVE_FILES, ""))

    def _find_by_spool(self, experiment: str, run: Mapping[str, Any]) -> list[Any]:
        """Return the MLflow runs of a spool, best first; a slow server may have carried out a repeated request twice."""
        filter_string = f"tags.`{contract.TAG_SPOOL}` = '{run['spool']}'"
        return sorted(self._client.search_runs([experiment], filter_string, max_results=MAX_DUPLICATE_RUNS), key=_data_sort_key)

    def delete_duplicate_runs(self, run: Mapping[str, Any]) -> None:
        for duplicate in self._find_by_spool(self.experiment_id, run) if self._may_have_duplicates else ():
            if duplicate.info.run_id != self._run_id and not (duplicate.data.metrics or duplicate.data.params):
                self._client.delete_run(duplicate.info.run_id)

    def _find_or_create_experiment(self, run: Mapping[str, Any]) -> str:
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
        except MlflowException as error:
            match = self._client.get_experiment_by_name(name)  # another trial has meanwhile created the experiment
            if match is not None:
                return str(match.experiment_id)
            if len(name) <= MAX_NAME_CHARS or not _is_refusal_by_store(error):
                raise
            return self._find_or_create_experiment({**run, "experiment": name[:MAX_NAME_CHARS]})

    def log_points(self, points: Sequence[MetricPoint]) -> None:
        """Points that the store already has stay unchanged; points that it refuses are counted and skipped."""
        names_to_skip = {name for name, n in self.refusal_counts.items() if n >= MAX_REFUSALS_PER_METRIC} - self._accepted
        if names_to_skip:
            names = (_REFUSED_METRIC_PREFIX + p.name for p in points)
            self.refusal_counts.update(name for name in names if name in names_to_skip)
            points = [p for p in points if _REFUSED_METRIC_PREFIX + p.name not in names_to_skip]
        # NaN values are sent in separate batches: before MLflow 3.16, a NaN that is sent again violates the primary key and its
        # whole batch fails.
        batches = [[p for p in points if not math.isnan(p.value)], [p for p in points if math.isnan(p.value)]]
        if self._is_file_store:  # if a point is refused, a request with several points would store the points before it twice
            batches = [[p for p in batch if p.name == key] for batch in batches for key in dict.fromkeys(p.name for p in batch)]
        for batch in batches:
            for i in range(0, len(batch), MAX_METRICS_PER_REQUEST):
                self._log_batch(batch[i : i + MAX_METRICS_PER_REQUEST])

    def _log_batch(self, points: Sequence[MetricPoint]) -> None:
        from mlflow.entities import Metric

        names = [_REFUSED_METRIC_PREFIX + p.name for p in points]
        self._write_batch("metrics", names, [Metric(p.name, p.value, p.time_ms, p.step) for p in points])
        self._accepted.update(name for name in names if name not in self.refusal_counts)

    def log_params(self, params: Mapping[str, str]) -> list[str]:
        """Return the names of the hyperparameters that already have a different value in the store."""
        from mlflow.entities import Param

        entities = [Param(name, value[:MAX_VALUE_CHARS]) for name, value in _clean_texts(params).items()]
        refused_before = Counter(self.refusal_counts)
        for i in range(0, len(entities), MAX_PARAMS_PER_REQUEST):
            batch = entities[i : i + MAX_PARAMS_PER_REQUEST]
            self._write_batch("params", [f"param {p.key}" for p in batch], batch)
        refused = [p.key for p in entities if self.refusal_counts[f"param {p.key}"] > refused_before[f"param {p.key}"]]
        stored_params = self._client.get_run(self._run_id).data.params if refused else {}
        conflicting_names = [name for name in refused if name in stored_params]
        self.refusal_counts = +(self.refusal_counts - Counter(f"param {name}" for name in conflicting_names))
        return conflicting_names

    def set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        entities = [RunTag(name, value[:MAX_VALUE_CHARS]) for name, value in _clean_texts(tags).items()]
        for i in range(0, len(entities), MAX_PARAMS_PER_REQUEST):
            batch = entities[i : i + MAX_PARAMS_PER_REQUEST]
            self._write_batch("tags", [f"tag {t.key}" for t in batch], batch)

    def _write_batch(self, kind: str, names: Sequence[str], entities: Sequence[Any]) -> None:
        """Split a refused batch in half repeatedly to find and skip the refused values. Raises every other error."""
        try:
            self._send_batch(kind, entities)
        except Exception as error:
            text = str(error).lower()
            is_stored = "integrityerror" in text or "unique constraint" in text or "duplicate" in text
            if not is_stored and not self._is_caused_by_values(error):
                raise
            if len(entities) == 1 and is_stored:
                return
            if len(entities) > 1:
                half = len(entities) // 2
                self._write_batch(kind, names[:half], entities[:half])
                self._write_batch(kind, names[half:], entities[half:])
            elif not self._retry_value(kind, names[0], entities, error):
                self.refusal_counts[names[0]] += 1
                self.refusal_reasons.setdefault(names[0], one_line_error(error))

    def _send_batch(self, kind: str, entities: Sequence[Any]) -> None:
        batch: dict[str, Any] = {kind: entities}
        self._client.log_batch(self._run_id, **batch)

    def _is_caused_by_values(self, error: Exception) -> bool:
        """Test whether the store accepts a different value now."""
        if not (_is_refusal_by_store(error) or getattr(error, "error_code", "") == "INTERNAL_ERROR"):
            return False
        from mlflow.entities import RunTag

        try:
            self._client.log_batch(self._run_id, tags=[RunTag(contract.TAG_SCHEMA, contract.SCHEMA)])
        except Exception:
            return False
        return True

    def _retry_value(self, kind: str, name: str, entities: Sequence[Any], error: Exception) -> bool:
        """Store a value whose error may be temporary; return whether it was stored. Raises every error that is not a
        refusal."""
        if _is_refusal_by_store(error) or self.refusal_counts[name]:
            return False
        for pause in _REQUEST_RETRY_PAUSES_S:
            time.sleep(pause)
            try:
                self._send_batch(kind, entities)
                return True
            except Exception as again:
                if not self._is_caused_by_values(again):
                    raise
        return False

    def log_file(self, file: Path, path: str) -> None:
        """The last component of `path` must be the file's own name."""
        self._client.log_artifact(self._run_id, str(file), path.rpartition("/")[0])

    def read_tag(self, name: str) -> str | None:
        """Return the value of a tag of the run; None if the run has no such tag."""
        value = self._client.get_run(self._run_id).data.tags.get(name)
        return None if value is None else str(value)

    def end_run(self, status: str, time_ms: int) -> None:
        self._client.set_terminated(self._run_id, status, max(time_ms, 0))


def _data_sort_key(match: Any) -> tuple[int, int, str]:
    """Return a sort key that puts the run with the most data first. Runs without data come last, sorted by id."""
    latest_point_ms = max((metric.timestamp for metric in match.data._metric_objs), default=0)
    return -latest_point_ms, -len(match.data.params) - len(match.data.tags), str(match.info.run_id)


def is_temporary_error(error: BaseException) -> bool:
    """Return whether the same request may succeed minutes later, because the cause is a network, server or disk failure."""
    for each in (error, error.__cause__, error.__context__):
        status = getattr(getattr(each, "response", None), "status_code", None)
        if status is not None:
            return bool(status >= 500 or status == 429)
        if isinstance(each, ConnectionError) or getattr(each, "errno", None) in _TEMPORARY_ERRNOS:
            return True
        if getattr(each, "error_code", "") in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE"):
            return True
        if type(each).__module__.startswith("requests.") and isinstance(each, OSError):  # the server sent no answer
            return True
    return False


def _experiment_id(run: Mapping[str, Any]) -> str | None:
    id = run.get("experiment_id") or (None if run.get("experiment") else os.environ.get("MLFLOW_EXPERIMENT_ID"))
    return None if id is None else str(id)


def _experiment_name(run: Mapping[str, Any]) -> str:
    return clean_text(run.get("experiment") or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default")


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Garbage collection would take a seventh of the CPU time of importing MLflow, and free almost nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def lock_store_opening(tracking_uri: str) -> Iterator[None]:
    """Two processes that create the tables of an SQLite store at the same time would corrupt it."""
    if not tracking_uri.startswith("sqlite:"):
        yield
        return
    from filelock import FileLock  # a slow import, which the training process does not need

    name = hashlib.sha256(tracking_uri.encode()).hexdigest()[0]  # a single hex digit limits the lock files to 16
    with FileLock(Path(tempfile.gettempdir()) / f"advisor-{user_id()}-{name}.lock", mode=0o600):
        yield


def _disable_connect_retries(tracking_uri: str) -> None:
    # If a database cannot be opened, MLflow silently retries for 90 seconds; we disable this, because our caller already
    # retries.
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


def _clean_texts(texts: Mapping[str, str]) -> dict[str, str]:
    return {clean_name(name): clean_text(value) for name, value in texts.items()}


def _is_refusal_by_store(error: Exception) -> bool:
    """Return whether the store refuses the same values at every attempt."""
    cause = error.__cause__ or error.__context__ or error
    for each in (error, cause):
        if isinstance(each, OSError):  # `requests` derives its network errors from OSError
            return each.errno in _REFUSED_FILE_NAME_ERRNOS
        if getattr(each, "error_code", "") in _REFUSAL_CODES or isinstance(each, ValueError | TypeError | OverflowError):
            return True
    return False
