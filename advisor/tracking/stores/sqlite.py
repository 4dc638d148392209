"""Reads an experiment from MLflow's SQLite file. MLflow's client would scan all runs for each metric history."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from advisor.model.errors import AdvisorError
from advisor.tracking.stores import database
from advisor.tracking.stores.location import StoreLocation, require_local

_REQUIRED_COLUMNS = {
    "experiments": {"experiment_id", "name", "lifecycle_stage"},
    "experiment_tags": {"experiment_id", "key", "value"},
    "runs": {"run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id"},
    "params": {"run_uuid", "key", "value"},
    "tags": {"run_uuid", "key", "value"},
    "latest_metrics": {"run_uuid", "key", "value", "is_nan"},
    "metrics": {"run_uuid", "key", "step", "value", "timestamp", "is_nan"},
}
_NUMERIC_COLUMNS = {
    "runs": ("start_time", "end_time"),
    "latest_metrics": ("value", "step", "timestamp"),
    "metrics": ("value", "step", "timestamp"),
}
_POINTS_INDEX = "index_metrics_run_uuid"
_TIMEOUT_S = 10.0
"""Maximum seconds to wait for the lock of a writing process."""
_HEADER_BYTES = 100
_MAX_OPEN_FILES = 64
_open_files: dict[tuple[int, int], int] = {}
"""File descriptors by (device, inode)."""


@contextmanager
def connect(location: StoreLocation) -> Iterator[database.RunDatabase]:
    """Open the file read-only, and check its schema. SQLite's errors are raised as AdvisorError."""
    path = require_local(location)
    try:
        with closing(_connect(_read_only_uri(path))) as connection:
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.text_factory = _decode
            _check_schema(connection, path)
            try:
                yield _SqliteDatabase(connection)
            except (TypeError, ValueError, OverflowError) as error:
                if (place := _first_invalid_column_type(connection)) is None:
                    raise
                raise AdvisorError(f"{path} is damaged: {place}; restore it from a backup or delete the run") from error
    except sqlite3.Error as error:
        raise _explain_error(error, path) from error


def _first_invalid_column_type(connection: sqlite3.Connection) -> str | None:
    """SQLite stores values of any type in any column; programs that log NumPy numbers store them as blobs."""
    for table, columns in _NUMERIC_COLUMNS.items():
        for column in columns:
            key = "key" if "key" in _REQUIRED_COLUMNS[table] else "name"
            condition = f"typeof({column}) NOT IN ('integer', 'real', 'null')"
            sql = f"SELECT {key}, run_uuid, typeof({column}) FROM {table} WHERE {condition} LIMIT 1"
            row = connection.execute(sql).fetchone()
            if row is not None:
                name, run = (" ".join(str(value).split())[:100] for value in row[:2])
                return f"{column} of {name!r} in run {run} is a {row[2]} instead of a number"
    return None


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_TIMEOUT_S)


def _decode(text: bytes) -> str:
    return text.decode(errors="replace")


def _read_only_uri(path: Path) -> str:
    if path.exists() and not path.is_file():  # reading from a pipe or a device might never end
        raise AdvisorError(f"{path} is not a file; pass the database that MLflow logs to")
    try:
        header = _read_header(path)
    except OSError as error:
        raise AdvisorError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if not header.startswith(b"SQLite format 3\0"):
        raise AdvisorError(f"{path} is {'empty' if not header else 'no SQLite database'}; pass the store that MLflow logs to")
    # A reader of a database in write-ahead-log mode creates two files in the database's folder, which may be read-only.
    # Without a write-ahead log, no process has the database open, so the database file is complete.
    # The option `immutable` then avoids the two files.
    write_ahead = header[18:19] == b"\2"
    is_complete = write_ahead and not path.with_name(path.name + "-wal").exists()
    return f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if is_complete else ''}"


def _read_header(path: Path) -> bytes:
    """Keep the file open, because closing it would release all POSIX locks that this process holds on it."""
    if not hasattr(os, "pread"):
        with path.open("rb") as file:
            return file.read(_HEADER_BYTES)
    info = path.stat()
    key = info.st_dev, info.st_ino
    if key not in _open_files:
        _open_files[key] = os.open(path, os.O_RDONLY)
        if len(_open_files) > _MAX_OPEN_FILES:
            os.close(_open_files.pop(next(iter(_open_files))))
    return os.pread(_open_files[key], _HEADER_BYTES, 0)


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"experiments", "runs", "alembic_version"} <= tables:
        raise AdvisorError(f"{path} is a SQLite database but no MLflow store; pass the one that your runs log to")
    database.check_schema_version(_SqliteDatabase(connection), path)
    has_index = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_POINTS_INDEX,)).fetchone()
    for table, columns in _REQUIRED_COLUMNS.items():
        present_columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if not has_index or not columns <= present_columns:
            raise AdvisorError(_old_schema_message(path))


def check_writable(location: StoreLocation) -> None:
    """Raise AdvisorError if MLflow would migrate the file or cannot write to it. Roll back an interrupted write."""
    path = require_local(location)
    if path.with_name(path.name + "-journal").exists():
        uri = f"{path.resolve().as_uri()}?mode=rw"  # mode=rw never creates a database
        with suppress(sqlite3.Error), closing(_connect(uri)) as connection:
            connection.execute("SELECT name FROM sqlite_master").fetchone()
    with connect(location) as connection:
        ((version,),) = connection.query("SELECT version_num FROM alembic_version")
        from mlflow.store.db.utils import _get_latest_schema_revision

        if version != _get_latest_schema_revision():  # type: ignore[no-untyped-call]
            raise AdvisorError(_old_schema_message(path))
        if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
            raise AdvisorError(f"cannot write to {path}: permission denied")


def _old_schema_message(path: Path) -> str:
    return f"{path} has the schema of an older MLflow; back it up and run: mlflow db upgrade sqlite:///{path}"


def _explain_error(error: sqlite3.Error, path: Path) -> AdvisorError:
    text = str(error)
    if "locked" in text or "busy" in text:
        return AdvisorError(
            f"{path} was locked by another program for {_TIMEOUT_S:g} s; try again when it has finished writing"
        )
    if "readonly" in text:
        return AdvisorError(f"{path} was left by a crash in the middle of a write; open it once with MLflow, which repairs it")
    if "unable to open" in text and not os.access(path.parent, os.W_OK):
        return AdvisorError(
            f"{path} is in use in write-ahead mode and its folder is read-only; copy it with its -wal file and read the copy"
        )
    if "malformed" in text or "not a database" in text:
        return AdvisorError(f"{path} is damaged ({text}); restore it from a backup")
    if error.sqlite_errorname.startswith("SQLITE_IOERR_LOCK") or error.sqlite_errorname == "SQLITE_IOERR_RDLOCK":
        return AdvisorError(f"the file system of {path} has no locks; copy the file to a local disk and read the copy")
    return AdvisorError(f"cannot read {path}: {text}")


# CROSS JOIN fixes the join order.
_POINTS_QUERY = f"""
    SELECT w.key * ? + k.i, m.step, CASE WHEN m.is_nan OR m.value IS NULL THEN ? ELSE m.value END, ifnull(m.timestamp, 0)
    FROM json_each(?) w CROSS JOIN metrics m INDEXED BY {_POINTS_INDEX} ON m.run_uuid = w.value
    CROSS JOIN wanted_metric k ON k.name = m.key
"""


class _SqliteDatabase(database.RunDatabase):
    points_per_query = 250_000  # queries are short, because processes that write to the file wait until the query ends
    revision_query = f"SELECT max(m.rowid) FROM metrics m INDEXED BY {_POINTS_INDEX} WHERE m.run_uuid = r.run_uuid"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        rows = self._connection.execute(sql, values)
        # SQLite accepts blobs in text columns.
        return [tuple(_decode(v) if isinstance(v, bytes) else v for v in row) for row in rows]

    def point_reader(self, metrics: Mapping[str, int]) -> database.PointReader:
        self.query("CREATE TEMP TABLE wanted_metric (name TEXT PRIMARY KEY, i INTEGER NOT NULL) WITHOUT ROWID")
        self._connection.executemany("INSERT INTO wanted_metric VALUES (?, ?)", metrics.items())

        def read(ids: Sequence[str]) -> database.PointBlock:
            rows = self._connection.execute(_POINTS_QUERY, (len(metrics), database.NAN_PLACEHOLDER, json.dumps(list(ids))))
            block = np.fromiter(rows, dtype=database.POINT_DTYPE)
            block["value"][block["value"] == database.NAN_PLACEHOLDER] = np.nan
            return block

        return read
