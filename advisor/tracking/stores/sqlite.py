"""Reads an experiment straight from MLflow's SQLite file: a few set-based, read-only queries into NumPy columns.

MLflow's client asks for one history at a time, and SQLite's plan for that looks through all runs: minutes where this takes seconds.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from advisor.model.errors import AdvisorError
from advisor.tracking.points import cache, collect
from advisor.tracking.points.sidecar import prefer
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.stores import database, sqlite_columns
from advisor.tracking.stores.location import Location, require_local
from advisor.tracking.stores.lookup import Listed, choose

_TABLES = {
    "experiments": {"experiment_id", "name", "lifecycle_stage"},
    "experiment_tags": {"experiment_id", "key", "value"},
    "runs": {"run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id"},
    "params": {"run_uuid", "key", "value"},
    "tags": {"run_uuid", "key", "value"},
    "latest_metrics": {"run_uuid", "key", "value", "is_nan"},
    "metrics": {"run_uuid", "key", "step", "value", "timestamp", "is_nan"},
}
_INDEX = "index_metrics_run_uuid"
_WAIT_S = 10.0
"""How long to wait for a program that is writing."""
_HEADER_BYTES = 100
_opened: dict[tuple[int, int], int] = {}
"""Descriptors by device and number of the file."""
_MOST_OPENED = 64
_MANY = 50_000
"""Points of a block from which on another driver is worth its import."""


def list_experiments(location: Location) -> list[Listed]:
    """All experiments of the store, also deleted ones."""
    with connect(location) as connection:
        return _listed(connection)


def read(
    location: Location,
    experiment: str,
    *,
    filter: str | None,
    system_metrics: bool,
    alone: bool,
    on_progress: Callable[[int, int], None],
) -> Experiment:
    """The experiment of that name or id; see `store.read_experiment`."""
    with connect(location) as connection:
        chosen = choose(experiment, _listed(connection), location)
        found = connection.execute(
            "SELECT run_uuid, name, status, start_time, end_time, artifact_uri, user_id FROM runs "
            "WHERE experiment_id = ? AND lifecycle_stage = 'active' ORDER BY start_time, run_uuid",
            (int(chosen.id),),
        ).fetchall()
        if filter:
            from advisor.tracking.stores.filtering import matching

            found = matching(connection.execute, found, filter)
        _note_wanted_runs(connection, [row[0] for row in found])
        runs = _runs(connection, found)
        latest = list(_latest(connection))
        sources = database.sources(runs, [row[5] for row in found], latest)
        kept, collector = cache.of_experiment(location, chosen.id), collect.Collector()
        keys = database.keys(runs, sources, latest, dict(_last_rows(connection)), system_metrics)
        known = kept.fill(keys, collector)
        ids = ["" if skip else row[0] for row, skip in zip(found, known, strict=True)]
        _read_points(connection, location if alone else None, ids, system_metrics, collector, on_progress)
        full, warnings, unusable = database.read_sidecars(sources, known, on_progress)
        prefer(full, collector)
        tags = connection.execute(
            "SELECT key, substr(value, 1, ?) FROM experiment_tags WHERE experiment_id = ?",
            (collect.MAX_TEXT, int(chosen.id)),
        )
        return Experiment(
            name=chosen.name,
            runs=runs,
            points=kept.points(collector, worth=database.WORTH_KEEPING, but=unusable),
            tags=collect.keep_tags(dict(tags.fetchall())),
            warnings=warnings,
        )


# --- connection -----------------------------------------------------------------------------------------------------------------


@contextmanager
def connect(location: Location) -> Iterator[sqlite3.Connection]:
    """A read-only connection to an MLflow store whose schema was checked; SQLite's errors come out as AdvisorError."""
    path = require_local(location)
    try:
        connection = sqlite3.connect(_read_only_uri(path), uri=True, isolation_level=None, timeout=_WAIT_S)
        try:
            connection.execute("PRAGMA temp_store = MEMORY")
            _check_schema(connection, path)
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _explained(error, path) from error


def _read_only_uri(path: Path) -> str:
    try:
        header = _header(path)
    except OSError as error:
        raise AdvisorError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if not header.startswith(b"SQLite format 3\0"):
        raise AdvisorError(
            f"{path} is {'empty' if not header else 'no SQLite database'}; pass the store that MLflow logs to"
        )
    # A database in write-ahead mode makes its readers create two files beside it. Without a log nobody has it open, the file
    # alone is the whole truth, and reading it as immutable leaves the folder as it is (and works where it is read-only).
    write_ahead = header[18] == 2
    log = path.with_name(path.name + "-wal")
    quiescent = write_ahead and not log.exists()
    return f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if quiescent else ''}"


def _header(path: Path) -> bytes:
    """The first bytes of a file, which stays open: to close it would end all locks that this process has on it, as POSIX wants."""
    if not hasattr(os, "pread"):
        with path.open("rb") as closed:
            return closed.read(_HEADER_BYTES)
    info = path.stat()
    file = info.st_dev, info.st_ino
    if file not in _opened:
        _opened[file] = os.open(path, os.O_RDONLY)
        if len(_opened) > _MOST_OPENED:
            os.close(_opened.pop(next(iter(_opened))))
    return os.pread(_opened[file], _HEADER_BYTES, 0)


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"experiments", "runs", "alembic_version"} <= tables:
        raise AdvisorError(f"{path} is a SQLite database but no MLflow store; pass the one that your runs log to")
    versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    database.check_version(versions[0][0] if versions else None, path)
    for table, columns in _TABLES.items():
        present = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if not columns <= present:
            raise AdvisorError(_too_old(path))
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_INDEX,)).fetchone():
        raise AdvisorError(_too_old(path))


def check_writable(location: Location) -> None:
    """Refuse a file that MLflow would have to migrate, or cannot, before it writes to it.

    What a killed program left half written is taken back, as MLflow itself would when it opens the file.
    """
    path = require_local(location)
    if path.with_name(path.name + "-journal").exists():
        uri = f"{path.resolve().as_uri()}?mode=rw"  # lest a database be made where there is none any more
        with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True, timeout=_WAIT_S)) as connection:
            connection.execute("SELECT name FROM sqlite_master").fetchone()
    with connect(location) as connection:
        (version,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        from mlflow.store.db.utils import _get_latest_schema_revision

        assert location.path is not None
        if version != _get_latest_schema_revision():  # type: ignore[no-untyped-call]
            raise AdvisorError(_too_old(location.path))
        if not os.access(location.path, os.W_OK) or not os.access(location.path.parent, os.W_OK):
            raise AdvisorError(f"cannot write to {location.path}: permission denied")


def _too_old(path: Path) -> str:
    return f"{path} has the schema of an older MLflow; back it up and run: mlflow db upgrade sqlite:///{path}"


def _explained(error: sqlite3.Error, path: Path) -> AdvisorError:
    text = str(error)
    if "locked" in text or "busy" in text:
        return AdvisorError(
            f"{path} was locked by another program for {_WAIT_S:g} s; try again when it has finished writing"
        )
    if "readonly" in text:
        return AdvisorError(
            f"{path} was left by a crash in the middle of a write; open it once with MLflow, which repairs it"
        )
    if "unable to open" in text and not os.access(path.parent, os.W_OK):
        return AdvisorError(
            f"{path} is in use in write-ahead mode and its folder is read-only; copy it with its -wal file and read the copy"
        )
    if "malformed" in text or "not a database" in text:
        return AdvisorError(f"{path} is damaged ({text}); restore it from a backup")
    return AdvisorError(f"cannot read {path}: {text}")


# --- experiment and runs --------------------------------------------------------------------------------------------------------


def _listed(connection: sqlite3.Connection) -> list[Listed]:
    found = connection.execute("SELECT experiment_id, name, lifecycle_stage FROM experiments ORDER BY experiment_id")
    return database.listed(found)


def _note_wanted_runs(connection: sqlite3.Connection, ids: Sequence[str]) -> None:
    """The runs to read, as a table of this connection's own memory: from here on a run is its index in `Experiment.runs`."""
    connection.execute("CREATE TEMP TABLE wanted_run (i INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, known DEFAULT 0)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO wanted_run (i, id) VALUES (?, ?)", enumerate(ids))
    connection.execute("COMMIT")


def _runs(connection: sqlite3.Connection, found: Sequence[tuple[Any, ...]]) -> tuple[Run, ...]:
    params = collect.text_maps(
        connection.execute(
            "SELECT w.i, p.key, substr(p.value, 1, ?) FROM wanted_run w CROSS JOIN params p ON p.run_uuid = w.id",
            (collect.MAX_TEXT,),
        ),
        len(found),
    )
    tags = collect.text_maps(_tags(connection), len(found))
    return tuple(
        collect.make_run(id=id, name=name, status=status, start_ms=start, end_ms=end, params=params[i], tags=tags[i])
        for i, (id, name, status, start, end, *_) in enumerate(found)
    )


def _tags(connection: sqlite3.Connection) -> Iterator[tuple[int, str, str | None]]:
    """The tags worth keeping; `collect.keep_tags` decides, this only keeps millions of others inside SQLite."""
    yield from connection.execute(
        """
        SELECT w.i, t.key, substr(t.value, 1, ?) FROM wanted_run w CROSS JOIN tags t ON t.run_uuid = w.id
        WHERE t.key GLOB 'advisor.*' OR t.key GLOB 'mlflow.source.*' OR t.key IN (?, ?, ?, ?)
        """,
        (collect.MAX_TEXT, *collect.MLFLOW_TAGS),
    )
    yield from connection.execute(
        """
        SELECT i, key, value FROM (
            SELECT w.i AS i, t.key AS key, substr(t.value, 1, :length) AS value,
                   row_number() OVER (PARTITION BY w.i ORDER BY t.key) AS place
            FROM wanted_run w CROSS JOIN tags t ON t.run_uuid = w.id
            WHERE NOT t.key GLOB 'mlflow.*' AND NOT t.key GLOB 'advisor.*'
        ) WHERE place <= :tags
        """,
        {"length": collect.MAX_TEXT, "tags": collect.MAX_TAGS},
    )


# --- points ---------------------------------------------------------------------------------------------------------------------


def _latest(connection: sqlite3.Connection) -> Iterator[database.Latest]:
    """The last point of each curve."""
    yield from connection.execute(
        "SELECT w.i, m.key, ifnull(m.timestamp, 0), m.step, m.value FROM wanted_run w CROSS JOIN latest_metrics m "
        "ON m.run_uuid = w.id"
    )


def _last_rows(connection: sqlite3.Connection) -> Iterator[tuple[int, int | None]]:
    """(run, number of its latest row among the points): greater with every point that is added, whatever its step."""
    yield from connection.execute(
        "SELECT w.i, (SELECT max(m.rowid) FROM metrics m INDEXED BY index_metrics_run_uuid WHERE m.run_uuid = w.id) "
        "FROM wanted_run w"
    )


def _read_points(
    connection: sqlite3.Connection,
    again: Location | None,
    ids: Sequence[str],
    system_metrics: bool,
    collector: collect.Collector,
    on_progress: Callable[[int, int], None],
) -> None:
    """Add the points of the runs to the collector; those that have no id are known already.

    again: the store, if it may be opened by another library as well.
    """
    connection.executemany("UPDATE wanted_run SET known = 1 WHERE i = ?", ((i,) for i, id in enumerate(ids) if not id))
    found = connection.execute(
        "SELECT DISTINCT m.key FROM wanted_run w CROSS JOIN latest_metrics m ON m.run_uuid = w.id "
        "WHERE NOT w.known ORDER BY m.key"
    )
    metrics = [key for (key,) in found if system_metrics or not key.startswith(collect.SYSTEM_PREFIX)]
    connection.execute("CREATE TEMP TABLE wanted_metric (name TEXT PRIMARY KEY, i INTEGER NOT NULL) WITHOUT ROWID")
    connection.executemany("INSERT INTO wanted_metric VALUES (?, ?)", [(name, i) for i, name in enumerate(metrics)])
    with closing(_Points(connection, again, metrics, ids)) as points:
        database.gather(len(ids), metrics, points.block, collector, on_progress)


class _Points:
    """Points by blocks of runs: by Python's driver, and once they turn out to be many by the faster one, if it is there."""

    def __init__(
        self, connection: sqlite3.Connection, again: Location | None, metrics: Sequence[str], ids: Sequence[str]
    ) -> None:
        self._connection, self._again, self._metrics, self._ids = connection, again, metrics, ids
        self._fast: sqlite_columns.Reader | None = None

    def close(self) -> None:
        if self._fast is not None:
            self._fast.close()

    def block(self, start: int, stop: int) -> database.Block:
        """The points of the runs `start` to `stop`, as `rows.POINT`."""
        if self._fast is not None:
            try:
                return self._fast.block(start, self._ids[start:stop])
            except sqlite_columns.Failed:  # if it is the file's fault, the slow one says so as well
                self._fast.close()
                self._fast = None
        block = _block(self._connection, len(self._metrics), start, stop)
        if self._again is not None and len(block) >= _MANY:
            again, self._again = self._again, None
            with suppress(sqlite_columns.Failed):
                self._fast = sqlite_columns.Reader(_read_only_uri(require_local(again)), self._metrics, wait_s=_WAIT_S)
        return block


def _block(connection: sqlite3.Connection, metrics: int, start: int, stop: int) -> database.Block:
    """The points of the runs `start` to `stop`, as `rows.POINT`."""
    points = connection.execute(
        """
        SELECT w.i * :metrics + k.i, m.step, CASE WHEN m.is_nan OR m.value IS NULL THEN :nan ELSE m.value END,
               ifnull(m.timestamp, 0)
        FROM wanted_run w CROSS JOIN metrics m INDEXED BY index_metrics_run_uuid ON m.run_uuid = w.id
        CROSS JOIN wanted_metric k ON k.name = m.key
        WHERE w.i >= :start AND w.i < :stop AND NOT w.known
        """,
        {"metrics": metrics, "nan": database.NAN, "start": start, "stop": stop},
    )
    block = np.fromiter(points, dtype=database.POINT)
    block["value"][block["value"] == database.NAN] = np.nan
    return block
