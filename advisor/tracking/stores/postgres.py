"""Reads an experiment from MLflow's PostgreSQL database with a few read-only queries, which see the same snapshot of the data.

A binary COPY returns each curve as packed numbers that NumPy reads directly. Fetching one row per point would take several
times as long. Several connections read in parallel, because most of the reading time is spent in the server.
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
from advisor.tracking.stores.location import StoreLocation

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECT_TIMEOUT_S = 5
_POINTS_PER_QUERY = 1_000_000
"""Approximate maximum number of points that one query returns. Long queries are harmless, because our snapshot does not block
processes that write to the database."""
_TRANSACTION_SETTINGS = "SET LOCAL work_mem = '256MB'; SET LOCAL jit = off"
"""Settings for each transaction: enough memory to group a run's points without temporary files, and no JIT compilation."""
_MIN_RUNS_PER_CONNECTION = 64
"""Minimum number of runs per connection. For fewer runs, an additional connection would save no time."""
_MAX_HELPER_CONNECTIONS = 3
_CONNECTION_ERROR_PREFIXES = ("08", "28", "57P0")
"""Prefixes of the SQLSTATE codes for a connection that was refused, lost, or closed by a server that is stopping."""
T = TypeVar("T")
Curve = tuple[int, bytes, bytes, bytes]
"""A curve: index of its run and metric, then its steps, values and times, each packed as 8-byte big-endian numbers."""


class PostgresStore(database.SqlTrackingStore):
    """A `store.Store` that reads MLflow's PostgreSQL database."""

    @contextmanager
    def open(self) -> Iterator[database.RunDatabase]:
        with connect(self.location) as connection, ExitStack() as helpers:
            yield _PostgresDatabase(connection, lambda: _helper_connections(connection, self.location, helpers))


def can_read(location: StoreLocation) -> bool:
    """Return whether the store is a PostgreSQL database and our database driver is installed. Other stores are read with
    MLflow's client, which is slower."""
    if location.kind != "database" or not location.uri.lower().startswith("postgres"):
        return False
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return False
    return True


# --- connection -----------------------------------------------------------------------------------------------------------------


@contextmanager
def connect(location: StoreLocation) -> Iterator[Connection]:
    """Open a read-only connection to a consistent snapshot of the database. Database errors are raised as AdvisorError."""
    import psycopg

    try:
        with _connect(location) as connection:
            versions = _query_rows(connection, "SELECT version_num FROM alembic_version")
            database.check_schema_version(versions[0][0] if versions else None, location.display)
            yield connection
    except psycopg.Error as error:
        raise _explain_error(error, location) from error


def _connect(location: StoreLocation) -> Connection:
    """Open a connection to PostgreSQL and start a read-only transaction."""
    import psycopg
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(location.uri)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise AdvisorError(
            f"{location.display!r} is not the address of a database; an example is postgresql://user@host/name"
        ) from None
    options = {**url.query, **url.translate_connect_args(username="user", database="dbname")}
    connection = psycopg.connect(**cast("dict[str, Any]", {"connect_timeout": _CONNECT_TIMEOUT_S, **options}))
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute(_TRANSACTION_SETTINGS)
    return connection


def _helper_connections(connection: Connection, location: StoreLocation, stack: ExitStack) -> list[Connection]:
    """Open and return additional connections to the same snapshot, at most as many as the server's parallel workers per query.

    If the server refuses some or all of these connections, fewer or none are returned, because some PostgreSQL-compatible
    services do not support shared snapshots.
    """
    import psycopg

    privilege = "SELECT has_function_privilege(to_regprocedure('pg_export_snapshot()'), 'EXECUTE')"
    helpers: list[Connection] = []
    with suppress(psycopg.Error):
        # The check runs in a nested transaction, so that an error ends only the check. PostgreSQL cannot export the snapshot of
        # a nested transaction.
        with connection.transaction():
            ((granted,),) = _query_rows(connection, privilege)
        if not granted:
            return []
        sql = "SELECT pg_export_snapshot(), current_setting('max_parallel_workers_per_gather')::int"
        ((snapshot, workers),) = _query_rows(connection, sql)
        for _ in range(min(workers, _MAX_HELPER_CONNECTIONS)):
            helper = stack.enter_context(_connect(location))
            helper.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            helpers.append(helper)
    return helpers


def _query_rows(connection: Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values or None).fetchall()


def _explain_error(error: psycopg.Error, location: StoreLocation) -> AdvisorError:
    import psycopg

    where = location.display
    if isinstance(error, psycopg.errors.UndefinedTable) and "alembic_version" in str(error):
        return database.unreadable_database_error("no store", where)
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return database.unreadable_database_error("old schema", where)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return database.unreadable_database_error("no privilege", where)
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_CONNECTION_ERROR_PREFIXES):
        return database.unreadable_database_error("out of reach", where)
    return AdvisorError(f"cannot read {where}: {database.shorten_message(error)}")


# --- queries --------------------------------------------------------------------------------------------------------------------

# A table of run ids (`w.id`), numbered from 1 (`w.i`). A read-only connection cannot create a temporary table.
_RUN_IDS_TABLE = "unnest(%s::text[]) WITH ORDINALITY AS w(id, i)"
_PARAMS_QUERY = f"""
    SELECT w.i - 1, p.key, left(p.value, {collect.MAX_TEXT_CHARS}) FROM {_RUN_IDS_TABLE} JOIN params p ON p.run_uuid = w.id
"""
_ESSENTIAL_TAGS_QUERY = f"""
    SELECT w.i - 1, t.key, left(t.value, {collect.MAX_TEXT_CHARS}) FROM {_RUN_IDS_TABLE} JOIN tags t ON t.run_uuid = w.id
    WHERE t.key LIKE 'advisor.%%' OR t.key LIKE 'mlflow.source.%%' OR t.key = ANY(%s)
"""
_USER_TAGS_QUERY = f"""
    SELECT i, key, value FROM (
        SELECT w.i - 1 AS i, t.key AS key, left(t.value, {collect.MAX_TEXT_CHARS}) AS value,
               row_number() OVER (PARTITION BY w.i ORDER BY t.key COLLATE "C") AS place
        FROM {_RUN_IDS_TABLE} JOIN tags t ON t.run_uuid = w.id
        WHERE t.key NOT LIKE 'mlflow.%%' AND t.key NOT LIKE 'advisor.%%'
    ) AS own WHERE place <= {collect.MAX_USER_TAGS}
"""
_LAST_POINTS_QUERY = f"""
    SELECT w.i - 1, m.key, coalesce(m.timestamp, 0), m.step, m.value
    FROM {_RUN_IDS_TABLE} JOIN latest_metrics m ON m.run_uuid = w.id
"""
_HAS_SYSTEM_METRICS_QUERY = f"""
    SELECT EXISTS (SELECT FROM {_RUN_IDS_TABLE} JOIN latest_metrics m ON m.run_uuid = w.id
    WHERE starts_with(m.key, '{collect.SYSTEM_METRIC_PREFIX}'))
"""
# With one subquery per run, the server uses the index on points even if its table statistics are out of date.
_POINT_COUNTS_QUERY = f"""
    SELECT w.i - 1, c.points FROM {_RUN_IDS_TABLE} CROSS JOIN LATERAL (
        SELECT count(*) AS points FROM metrics m WHERE m.run_uuid = w.id HAVING count(*) > 0
    ) AS c
"""
# No selected column is NULL, because all of them belong to the table's primary key.
_CURVES_QUERY = f"""
    COPY (SELECT w.i - 1, c.* FROM {_RUN_IDS_TABLE} CROSS JOIN LATERAL (
        SELECT m.key, string_agg(int8send(m.step::int8), ''),
               string_agg(float8send(CASE WHEN m.is_nan THEN 'NaN' ELSE m.value::float8 END), ''),
               string_agg(int8send(m.timestamp::int8), '')
        FROM metrics m WHERE m.run_uuid = w.id {{condition}} GROUP BY m.key
    ) AS c) TO STDOUT (FORMAT BINARY)
"""
_IS_NOT_SYSTEM_METRIC = f"AND NOT starts_with(m.key, '{collect.SYSTEM_METRIC_PREFIX}')"
"""SQL condition that excludes MLflow's system metrics. Evaluating the condition takes a fifth of the server's time, so queries
omit it if there are no system metrics."""


class _PostgresDatabase:
    """A `database.RunDatabase` for PostgreSQL."""

    run_order = 'start_time NULLS FIRST, run_uuid COLLATE "C"'

    def __init__(self, connection: Connection, helpers: Callable[[], list[Connection]] = list) -> None:
        self._connection, self._helpers = connection, helpers

    @cached_property
    def _open_connections(self) -> list[Connection]:
        return [self._connection, *self._helpers()]

    def query(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        return _query_rows(self._connection, sql.replace("?", "%s"), *values)

    def params(self, ids: list[str]) -> list[tuple[Any, ...]]:
        return _query_rows(self._connection, _PARAMS_QUERY, ids)

    def tags(self, ids: list[str]) -> list[tuple[Any, ...]]:
        essential = _query_rows(self._connection, _ESSENTIAL_TAGS_QUERY, ids, list(collect.MLFLOW_TAGS))
        return essential + _query_rows(self._connection, _USER_TAGS_QUERY, ids)

    def last_points(self, ids: list[str]) -> list[database.LastPoint]:
        return _query_rows(self._connection, _LAST_POINTS_QUERY, ids)

    def revisions(self, ids: list[str]) -> list[tuple[Any, ...]]:
        """The revision of a run is its number of points."""
        return self._divide_among_connections(
            lambda connection, share: _query_rows(connection, _POINT_COUNTS_QUERY, share), ids
        )

    def blocks(self, metrics: Mapping[str, int], ids: list[str]) -> Iterator[tuple[int, database.PointBlock]]:
        def read(some: list[str]) -> database.PointBlock:
            ((has_system,),) = _query_rows(self._connection, _HAS_SYSTEM_METRICS_QUERY, some)
            sql = _CURVES_QUERY.format(condition=_IS_NOT_SYSTEM_METRIC if has_system else "")
            return _parse_curves(
                self._divide_among_connections(lambda connection, share: _read_curves(connection, sql, metrics, share), some)
            )

        return database.read_blocks(read, ids, len(metrics), _POINTS_PER_QUERY)

    def _divide_among_connections(self, read: Callable[[Connection, list[str]], Iterable[T]], ids: list[str]) -> list[T]:
        """Return the results of `read` for all runs, in any order. For many runs, several connections read in parallel."""
        if len(ids) < _MIN_RUNS_PER_CONNECTION:
            return list(read(self._connection, ids))
        many = len(self._open_connections)
        # A run that another connection reads keeps its index, but an empty id replaces its id, so that this connection does not
        # read it.
        shares = [[id if i % many == k else "" for i, id in enumerate(ids)] for k in range(many)]
        with ThreadPoolExecutor(many) as pool:
            try:
                return [row for part in pool.map(read, self._open_connections, shares) for row in part]
            except (
                BaseException
            ):  # this also runs after an interrupt, so that we do not wait for the queries of other connections
                for connection in self._open_connections:
                    connection.cancel()
                raise


# --- points ---------------------------------------------------------------------------------------------------------------------


def _read_curves(connection: Connection, sql: str, metrics: Mapping[str, int], ids: list[str]) -> list[Curve]:
    with connection.cursor() as cursor, cursor.copy(sql, (ids,)) as copy:
        copy.set_types(("int8", "text", "bytea", "bytea", "bytea"))
        return [(place * len(metrics) + metrics[key], *columns) for place, key, *columns in copy.rows() if key in metrics]


def _parse_curves(curves: list[Curve]) -> database.PointBlock:
    """Return the points of the curves, sorted by run."""
    if not curves:
        return np.empty(0, dtype=database.POINT_DTYPE)
    groups, *columns = zip(*sorted(curves), strict=True)
    counts = [len(steps) // 8 for steps in columns[0]]
    block = np.empty(sum(counts), dtype=database.POINT_DTYPE)
    block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
    for name, kind, column in zip(("step", "value", "time"), (">i8", ">f8", ">i8"), columns, strict=True):
        block[name] = np.frombuffer(b"".join(column), kind)
    return block
