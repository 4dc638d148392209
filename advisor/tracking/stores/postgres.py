"""Reads an experiment from MLflow's PostgreSQL database with a few read-only queries in one consistent snapshot.

Points are read by binary COPY, each curve as packed numbers that NumPy reads directly. Fetching one row per point would take
several times as long. Several connections run in parallel, because the server uses most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from advisor.model.errors import AdvisorError
from advisor.tracking.points import collect
from advisor.tracking.stores import database
from advisor.tracking.stores.location import Location

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECT_TIMEOUT_S = 5
_POINTS_AT_ONCE = 1_000_000
"""Approximate maximum number of points of one query. A snapshot blocks no writer."""
_SETTINGS = "SET LOCAL work_mem = '256MB'; SET LOCAL jit = off"
"""Transaction settings: enough memory to group a run's points without temporary files, and no JIT compilation."""
_MIN_RUNS_TO_SHARE = 64
"""Minimum number of runs per query for which another connection saves time."""
_MAX_HELPERS = 3
"""Maximum number of additional connections."""
_CONNECTION_ERRORS = ("08", "28", "57P0")
"""SQLSTATE prefixes of connections that were refused, broken, or closed by a stopping server. Some errors have no code."""
T = TypeVar("T")
Curve = tuple[int, bytes, bytes, bytes]
"""A curve: its group, then its steps, values and times, each packed as 8-byte big-endian numbers."""


class PostgresStore(database.SqlStore):
    """A `store.Store` that reads MLflow's PostgreSQL database."""

    @contextmanager
    def open(self) -> Iterator[database.Database]:
        """Implement `database.SqlStore.open`."""
        with connect(self.location) as connection, ExitStack() as helpers:
            yield _Database(connection, lambda: _helpers(connection, self.location, helpers))


def can_read(location: Location) -> bool:
    """Return True if the store is a PostgreSQL database with an installed driver. Otherwise MLflow's client reads it, slowly."""
    if location.kind != "database" or not location.uri.lower().startswith("postgres"):
        return False
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return False
    return True


# --- connection -----------------------------------------------------------------------------------------------------------------


@contextmanager
def connect(location: Location) -> Iterator[Connection]:
    """Open a read-only connection with a consistent snapshot of the database. Convert its errors to AdvisorError."""
    import psycopg

    try:
        with _connect(location) as connection:
            versions = _query(connection, "SELECT version_num FROM alembic_version")
            database.check_version(versions[0][0] if versions else None, location.display)
            yield connection
    except psycopg.Error as error:
        raise _explain(error, location) from error


def _connect(location: Location) -> Connection:
    """Open a connection to PostgreSQL and begin a read-only transaction."""
    import psycopg
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(location.uri)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise AdvisorError(
            f"{location.display!r} is no address of a database; one is postgresql://user@host/name"
        ) from None
    options = {**url.query, **url.translate_connect_args(username="user", database="dbname")}
    connection = psycopg.connect(**cast("dict[str, Any]", {"connect_timeout": _CONNECT_TIMEOUT_S, **options}))
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute(_SETTINGS)
    return connection


def _helpers(connection: Connection, location: Location, stack: ExitStack) -> list[Connection]:
    """Open additional connections to the same snapshot, up to the server's number of parallel workers per query.

    If the server refuses some or all of them, return fewer: PostgreSQL-compatible services may not support shared snapshots.
    """
    import psycopg

    privilege = "SELECT has_function_privilege(to_regprocedure('pg_export_snapshot()'), 'EXECUTE')"
    helpers: list[Connection] = []
    with suppress(psycopg.Error):
        with connection.transaction():  # nested: an error ends only this one; it cannot export a snapshot
            ((granted,),) = _query(connection, privilege)
        if not granted:
            return []
        sql = "SELECT pg_export_snapshot(), current_setting('max_parallel_workers_per_gather')::int"
        ((snapshot, workers),) = _query(connection, sql)
        for _ in range(min(workers, _MAX_HELPERS)):
            helper = stack.enter_context(_connect(location))
            helper.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            helpers.append(helper)
    return helpers


def _query(connection: Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values or None).fetchall()


def _explain(error: psycopg.Error, location: Location) -> AdvisorError:
    import psycopg

    where = location.display
    if isinstance(error, psycopg.errors.UndefinedTable) and "alembic_version" in str(error):
        return database.refusal("no store", where)
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return database.refusal("old schema", where)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return database.refusal("no privilege", where)
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_CONNECTION_ERRORS):
        return database.refusal("out of reach", where)
    return AdvisorError(f"cannot read {where}: {database.short(error)}")


# --- queries --------------------------------------------------------------------------------------------------------------------

# Run ids as `w.id` and their numbers, from 1, as `w.i`. A read-only connection cannot create a temporary table.
_RUNS = "unnest(%s::text[]) WITH ORDINALITY AS w(id, i)"
_PARAMS = f"SELECT w.i - 1, p.key, left(p.value, {collect.MAX_TEXT}) FROM {_RUNS} JOIN params p ON p.run_uuid = w.id"
_ESSENTIAL_TAGS = f"""
    SELECT w.i - 1, t.key, left(t.value, {collect.MAX_TEXT}) FROM {_RUNS} JOIN tags t ON t.run_uuid = w.id
    WHERE t.key LIKE 'advisor.%%' OR t.key LIKE 'mlflow.source.%%' OR t.key = ANY(%s)
"""
_OTHER_TAGS = f"""
    SELECT i, key, value FROM (
        SELECT w.i - 1 AS i, t.key AS key, left(t.value, {collect.MAX_TEXT}) AS value,
               row_number() OVER (PARTITION BY w.i ORDER BY t.key COLLATE "C") AS place
        FROM {_RUNS} JOIN tags t ON t.run_uuid = w.id
        WHERE t.key NOT LIKE 'mlflow.%%' AND t.key NOT LIKE 'advisor.%%'
    ) AS own WHERE place <= {collect.MAX_TAGS}
"""
_LAST_POINTS = f"""
    SELECT w.i - 1, m.key, coalesce(m.timestamp, 0), m.step, m.value
    FROM {_RUNS} JOIN latest_metrics m ON m.run_uuid = w.id
"""
_HAS_SYSTEM_METRICS = f"""
    SELECT EXISTS (SELECT FROM {_RUNS} JOIN latest_metrics m ON m.run_uuid = w.id
    WHERE starts_with(m.key, '{collect.SYSTEM_PREFIX}'))
"""
# With one subquery per run, the server uses the index of points even if its table statistics are out of date.
_COUNTS = f"""
    SELECT w.i - 1, c.points FROM {_RUNS} CROSS JOIN LATERAL (
        SELECT count(*) AS points FROM metrics m WHERE m.run_uuid = w.id HAVING count(*) > 0
    ) AS c
"""
# No column is NULL, because all columns belong to the table's primary key.
_CURVES = f"""
    COPY (SELECT w.i - 1, c.* FROM {_RUNS} CROSS JOIN LATERAL (
        SELECT m.key, string_agg(int8send(m.step::int8), ''),
               string_agg(float8send(CASE WHEN m.is_nan THEN 'NaN' ELSE m.value::float8 END), ''),
               string_agg(int8send(m.timestamp::int8), '')
        FROM metrics m WHERE m.run_uuid = w.id {{condition}} GROUP BY m.key
    ) AS c) TO STDOUT (FORMAT BINARY)
"""
_NOT_SYSTEM = f"AND NOT starts_with(m.key, '{collect.SYSTEM_PREFIX}')"
"""SQL condition that excludes system metrics. It takes a fifth of the server's time, so it is omitted if there are none."""


class _Database:
    """Implementation of `database.Database` for PostgreSQL."""

    run_order = 'start_time NULLS FIRST, run_uuid COLLATE "C"'

    def __init__(self, connection: Connection, helpers: Callable[[], list[Connection]] = list) -> None:
        self._connection, self._helpers = connection, helpers

    @cached_property
    def _connections(self) -> list[Connection]:
        return [self._connection, *self._helpers()]

    def query(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        return _query(self._connection, sql.replace("?", "%s"), *values)

    def params(self, ids: list[str]) -> list[tuple[Any, ...]]:
        return _query(self._connection, _PARAMS, ids)

    def tags(self, ids: list[str]) -> list[tuple[Any, ...]]:
        essential = _query(self._connection, _ESSENTIAL_TAGS, ids, list(collect.MLFLOW_TAGS))
        return essential + _query(self._connection, _OTHER_TAGS, ids)

    def last_points(self, ids: list[str]) -> list[database.LastPoint]:
        return _query(self._connection, _LAST_POINTS, ids)

    def revisions(self, ids: list[str]) -> list[tuple[Any, ...]]:
        """Return the number of points of each run."""
        return self._share(lambda connection, share: _query(connection, _COUNTS, share), ids)

    def blocks(self, metrics: Mapping[str, int], ids: list[str]) -> Iterator[tuple[int, database.Block]]:
        def read(some: list[str]) -> database.Block:
            ((has_system,),) = _query(self._connection, _HAS_SYSTEM_METRICS, some)
            wanted = any(name.startswith(collect.SYSTEM_PREFIX) for name in metrics)
            sql = _CURVES.format(condition=_NOT_SYSTEM if has_system and not wanted else "")
            return _block(self._share(lambda connection, share: _curves(connection, sql, metrics, share), some))

        return database.read_blocks(read, ids, len(metrics), _POINTS_AT_ONCE)

    def _share(self, read: Callable[[Connection, list[str]], Iterable[T]], ids: list[str]) -> list[T]:
        """Return the results of `read` for all runs, in any order. Many runs are divided among the connections in parallel."""
        if len(ids) < _MIN_RUNS_TO_SHARE:
            return list(read(self._connection, ids))
        many = len(self._connections)
        # A run that another connection reads keeps its index but gets an empty id.
        shares = [[id if i % many == k else "" for i, id in enumerate(ids)] for k in range(many)]
        with ThreadPoolExecutor(many) as pool:
            try:
                return [row for part in pool.map(read, self._connections, shares) for row in part]
            except BaseException:  # also on an interrupt: do not wait for the other queries
                for connection in self._connections:
                    connection.cancel()
                raise


# --- points ---------------------------------------------------------------------------------------------------------------------


def _curves(connection: Connection, sql: str, metrics: Mapping[str, int], ids: list[str]) -> list[Curve]:
    with connection.cursor() as cursor, cursor.copy(sql, (ids,)) as copy:
        copy.set_types(("int8", "text", "bytea", "bytea", "bytea"))
        return [
            (place * len(metrics) + metrics[key], *columns) for place, key, *columns in copy.rows() if key in metrics
        ]


def _block(curves: list[Curve]) -> database.Block:
    """Return the points of the curves, ordered by run."""
    if not curves:
        return np.empty(0, dtype=database.POINT)
    groups, *columns = zip(*sorted(curves), strict=True)
    counts = [len(steps) // 8 for steps in columns[0]]
    block = np.empty(sum(counts), dtype=database.POINT)
    block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
    for name, kind, column in zip(("step", "value", "time"), (">i8", ">f8", ">i8"), columns, strict=True):
        block[name] = np.frombuffer(b"".join(column), kind)
    return block
