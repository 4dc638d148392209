"""MLflow's own client, opened quietly: for tracking servers, other databases than SQLite, and folders of files."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from advisor import contract
from advisor.contract.redact import redact
from advisor.model.errors import AdvisorError
from advisor.tracking.points import cache, collect
from advisor.tracking.points.sidecar import Full, Source, longest, prefer, read_sidecars
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.stores import bulk
from advisor.tracking.stores.location import Kind, Location, require_local
from advisor.tracking.stores.lookup import Listed, choose

_ALWAYS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # with the password in it
}
IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "4",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
}
"""For the first words with a server: MLflow's own settings would retry for minutes before they say that nobody is there."""
PATIENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
"""For the long work with a server that has answered: one that hangs is given up after three minutes."""
_NOISY = ("mlflow", "alembic", "urllib3", "sqlalchemy")
_OLD_MLFLOW = "MLflow before 3.9 opens no database with SQLAlchemy 2.1; run: pip install 'sqlalchemy<2.1'"
_RUNS_A_PAGE = 1000
_THREADS = 8
_WORTH_KEEPING = 20_000
"""Points that a server takes longer to give than a file to write."""
_CONNECT_S = 5


@contextmanager
def quiet_mlflow(settings: Mapping[str, str] | None = None) -> Iterator[None]:
    """Within it MLflow sends no telemetry, logs nothing and follows `settings` (environment variables); all is put back after."""
    wanted = {**_ALWAYS, **(settings or {})}
    before = {name: os.environ.get(name) for name in wanted}
    levels = {name: logging.getLogger(name).level for name in _NOISY}
    os.environ.update(wanted)
    try:
        import mlflow  # noqa: F401  (sets its loggers up, which are then silenced)

        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def one_line(error: BaseException) -> str:
    """What the error says, on one line of bearable length, without credentials."""
    if isinstance(error, ImportError) and "from 'sqlalchemy" in str(error):
        return _OLD_MLFLOW
    text = " ".join(redact(str(getattr(error, "orig", None) or error)).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def bad_filter(filter: str, error: BaseException) -> AdvisorError:
    """MLflow's refusal of a filter; said of parameters, which look like numbers, that they are none to MLflow."""
    hint = ""
    if re.search(r"\bparam(eter)?s?\.", filter, re.I):
        hint = "; parameters are compared as text, with =, != and LIKE only, numbers can be compared for metrics"
    return AdvisorError(f"--filter {filter!r} is not one that MLflow understands: {one_line(error).rstrip('.')}{hint}")


@contextmanager
def opened(location: Location) -> Iterator[Any]:
    """An `MlflowClient` of the store, and MLflow's errors as AdvisorError; talks to a server impatiently."""
    # MLflow 2 knows the server of artifacts by the environment alone.
    with quiet_mlflow({**IMPATIENT, "MLFLOW_TRACKING_URI": location.uri}):
        from mlflow.exceptions import MlflowException

        try:
            if location.kind == "database":
                check_database(location)
            yield open_client(location)
        except (MlflowException, OSError, ImportError) as error:
            raise explained(error, location) from error


def open_client(location: Location) -> Any:
    """An `MlflowClient` of the store; within `quiet_mlflow`."""
    from mlflow import MlflowClient

    if location.kind != "files":
        return MlflowClient(location.uri)
    trash = require_local(location) / ".trash"
    had_trash = trash.exists()
    client = MlflowClient(location.uri)
    if not had_trash and trash.exists():
        trash.rmdir()  # MLflow makes it on opening; reading leaves the folder as it was
    return client


def explained(error: BaseException, location: Location, doing: str = "read") -> AdvisorError:
    """The error as one line that says what to do."""
    text = one_line(error)
    where = location.shown
    if re.search(
        r"Max retries|Connection ?(refused|reset|aborted|broken|error)|timed out|resolve|Failed to establish",
        text,
        re.I,
    ):
        return AdvisorError(f"cannot reach {where}; is the tracking server running, and is the address right?")
    if re.search(r"\b(401|403)\b|Unauthorized|PERMISSION_DENIED|Permission denied", text):
        return AdvisorError(
            f"{where} refuses access; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN"
            if location.kind == "server"
            else f"cannot {doing} {where}: permission denied"
        )
    if location.kind == "server" and re.search(r"\b(404|405)\b|Failed to parse|not a valid JSON|Expecting value", text):
        return AdvisorError(f"{where} answers, but not as an MLflow tracking server does; is the address right?")
    if isinstance(error, ImportError):
        driver = "" if text == _OLD_MLFLOW else "; install the database's Python driver"
        return AdvisorError(f"cannot open {where}: {text}{driver}")
    return AdvisorError(f"MLflow cannot {doing} {where}: {text}")


def check_database(location: Location) -> None:
    """Refuse a database whose schema is not the installed MLflow's: opening it with MLflow could begin to migrate it."""
    import sqlalchemy
    from mlflow.store.db.utils import _get_latest_schema_revision

    try:
        engine = sqlalchemy.create_engine(location.uri, connect_args={"connect_timeout": _CONNECT_S})
        with engine.connect() as connection:
            version = connection.execute(sqlalchemy.text("SELECT version_num FROM alembic_version")).scalar()
        engine.dispose()
    except sqlalchemy.exc.OperationalError as error:
        raise AdvisorError(
            f"cannot reach {location.shown}; is the database running, and are user and password right?"
        ) from error
    except sqlalchemy.exc.SQLAlchemyError as error:
        raise AdvisorError(f"{location.shown} holds no MLflow store: {one_line(error)}") from error
    if version != _get_latest_schema_revision():  # type: ignore[no-untyped-call]
        raise AdvisorError(
            f"{location.shown} has the schema of another MLflow version than the one installed here; "
            "install that version, or back the database up and run: mlflow db upgrade"
        )


# --- reading --------------------------------------------------------------------------------------------------------------------


def list_experiments(location: Location) -> list[Listed]:
    """All experiments of the store, also deleted ones."""
    with opened(location) as client:
        return _listed(client)


def _listed(client: Any) -> list[Listed]:
    found = _experiments(client)
    return [Listed(id=e.experiment_id, name=e.name, deleted=e.lifecycle_stage == "deleted") for e in found]


def experiment_tags(client: Any) -> list[tuple[str, dict[str, str]]]:
    """(name, tags) of the experiments that were not deleted, oldest first."""
    found = [e for e in _experiments(client) if e.lifecycle_stage != "deleted"]
    return [(e.name, collect.keep_tags(e.tags)) for e in found]


def _experiments(client: Any) -> list[Any]:
    from mlflow.entities import ViewType

    found: list[Any] = []
    token = None
    while True:
        page = client.search_experiments(view_type=ViewType.ALL, page_token=token)
        found += page
        token = page.token
        if not token:
            break
    return sorted(found, key=lambda e: (len(e.experiment_id), e.experiment_id))


def read(
    location: Location,
    experiment: str,
    *,
    filter: str | None,
    system_metrics: bool,
    on_progress: Callable[[int, int], None],
) -> Experiment:
    """The experiment of that name or id; see `store.read_experiment`."""
    with opened(location) as client:
        chosen = choose(experiment, _listed(client), location)
        tags = collect.keep_tags(client.get_experiment(chosen.id).tags)
        with quiet_mlflow(PATIENT):
            found = _search(client, chosen.id, filter)
            metrics = [
                [key for key in sorted(run.data.metrics) if system_metrics or not key.startswith(collect.SYSTEM_PREFIX)]
                for run in found
            ]
            sources = [_sidecar(run, keys) for run, keys in zip(found, metrics, strict=True)]
            limit = longest(len(sources) - sources.count(None))
            kept, collector = cache.of_experiment(location, chosen.id), collect.Collector()
            known = kept.fill([_key(run, keys, limit) for run, keys in zip(found, metrics, strict=True)], collector)
            full, warnings = read_sidecars(
                [None if known[i] else source for i, source in enumerate(sources)],
                tracking_uri=location.uri,
                limit=limit,
                reducing=True,
                on_progress=on_progress,
            )
            lacking = [[] if known[i] else _not_in(full[i], run, metrics[i]) for i, run in enumerate(found)]
            _read_points(client, found, lacking, location.kind, collector, on_progress)
            on_progress(len(found), len(found))
            prefer(full, collector)
        unusable = [i for i, source in enumerate(sources) if source is not None and full[i] is None and not known[i]]
        return Experiment(
            name=chosen.name,
            runs=tuple(_run(run) for run in found),
            points=kept.points(collector, worth=_WORTH_KEEPING, but=unusable),
            tags=tags,
            warnings=warnings,
        )


def _key(run: Any, metrics: list[str], limit: int) -> str | None:
    """What the cache knows the run by: all that MLflow says of it without its points, the last of each curve among that.

    It does not say that a point was put before the last one of a run that had ended, which databases do.
    """
    if run.info.status in ("RUNNING", "SCHEDULED"):
        return None
    wanted = set(metrics)
    last = sorted((m.key, m.step, m.timestamp, repr(m.value)) for m in run.data._metric_objs if m.key in wanted)
    times = (run.info.start_time, run.info.end_time)
    sidecar = (run.data.tags.get(contract.TAG_SIDECAR), run.info.artifact_uri, limit)
    return cache.key(run.info.run_id, run.info.status, times, sidecar, last)


def _sidecar(run: Any, metrics: list[str]) -> Source | None:
    tag = run.data.tags.get(contract.TAG_SIDECAR)
    if not tag or run.info.status in ("RUNNING", "SCHEDULED"):
        return None
    last = {m.key: m.timestamp for m in run.data._metric_objs}
    return Source(tag, run.info.artifact_uri or "", {key: last[key] for key in metrics})


def _not_in(full: Full | None, run: Any, metrics: list[str]) -> list[str]:
    """The metrics that have to be read from the store."""
    if full is None:
        return metrics
    last = {m.key: m.timestamp for m in run.data._metric_objs}
    return [key for key in metrics if not full.covers(key, last[key])]


def _search(client: Any, experiment: str, filter: str | None) -> list[Any]:
    from mlflow.exceptions import MlflowException

    found: list[Any] = []
    token = None
    while True:
        try:
            page = client.search_runs([experiment], filter or "", max_results=_RUNS_A_PAGE, page_token=token)
        except MlflowException as error:
            if filter and error.error_code == "INVALID_PARAMETER_VALUE":
                raise bad_filter(filter, error) from error
            raise
        found += page
        token = page.token
        if not token:
            break
    return sorted(found, key=lambda run: (run.info.start_time or 0, run.info.run_id))


def _run(run: Any) -> Run:
    return collect.make_run(
        id=run.info.run_id,
        name=run.info.run_name,
        status=run.info.status,
        start_ms=run.info.start_time,
        end_ms=run.info.end_time,
        params=run.data.params,
        tags=run.data.tags,
    )


def _read_points(
    client: Any,
    runs: list[Any],
    metrics: list[list[str]],
    kind: Kind,
    collector: collect.Collector,
    on_progress: Callable[[int, int], None],
) -> None:
    """All points: of a server many runs at once where it gives them whole, else one exact history at a time."""
    wanted = [
        bulk.Curve(m.key, i, run.info.run_id, m.step)
        for i, (run, keys) in enumerate(zip(runs, map(set, metrics), strict=True))
        for m in run.data._metric_objs
        if m.key in keys
    ]
    threads = 1 if kind == "files" else _THREADS

    def tell(done: int) -> None:
        on_progress(done * len(runs) // max(len(wanted), 1), len(runs))

    left = bulk.histories(client, wanted, collector, threads, tell) if kind == "server" else wanted
    pool = ThreadPoolExecutor(threads, thread_name_prefix="advisor-read")
    try:
        read = pool.map(lambda curve: client.get_metric_history(curve.id, curve.metric), left)
        for done, (curve, history) in enumerate(zip(left, read, strict=True), start=len(wanted) - len(left) + 1):
            _add(collector, curve.metric, curve.run, history)
            tell(done)
    finally:
        pool.shutdown(cancel_futures=True)


def _add(collector: collect.Collector, key: str, run: int, history: list[Any]) -> None:
    if not history:
        return
    numbers = np.fromiter(chain.from_iterable((m.step, m.timestamp) for m in history), dtype=np.int64).reshape(-1, 2)
    values = np.fromiter((m.value for m in history), dtype=np.float64, count=len(history))
    runs = np.full(len(history), run, dtype=np.int64)
    collector.add(key, runs, numbers[:, 0].copy(), values, numbers[:, 1].copy())
