"""Reads an experiment from MLflow's PostgreSQL, MySQL or MariaDB database with a few queries on one snapshot. The server packs
the points of a curve into one value, because a row per point takes several times as long. Most MySQL databases ignore case, but
metrics that differ only in case are two metrics, as in MLflow."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from advisor.model.errors import AdvisorError, UnansweredError
from advisor.tracking.points import collect
from advisor.tracking.stores import database
from advisor.tracking.stores.client import one_line_error
from advisor.tracking.stores.location import StoreLocation

_CONNECT_TIMEOUT_S = 5
_MIN_RUNS_PER_CONNECTION = 64
"""For fewer runs, an additional connection to PostgreSQL would save no time."""
_MAX_HELPER_CONNECTIONS = 3
_NO_TABLE_CODES = ("42P01", "1146")
_NO_DATABASE_CODE = "1046"
_OLD_SCHEMA_CODES = (*_NO_TABLE_CODES, "42703", "1054", "1176")
"""A table, column or index is missing."""
_NO_PRIVILEGE_CODES = ("42501", "1142", "1143")
_CONNECTION_ERROR_PREFIXES = ("08", "28", "57P0")
"""PostgreSQL's codes for a connection that was refused, lost, or closed by a stopping server."""
_CONNECTION_ERROR_CODES = "0 1040 1044 1045 1049 1053 1129 1130 1226 1698 1927 2002 2003 2005 2006 2013 2026 2055".split()
"""MySQL's codes for a connection that was refused, unauthorised, lost, or closed by a stopping server."""


class ServerDatabase(database.RunDatabase):
    """A database on a server, which is read through Python's database interface (PEP 249)."""

    points_per_query = 1_000_000  # long queries are harmless, because our snapshot does not block writers
    revision_query = "SELECT count(*) FROM metrics m WHERE m.run_uuid = r.run_uuid"
    drivers: ClassVar[tuple[str, ...]]
    example_address: ClassVar[str]

    def __init__(self, connection: Any, connect_again: Callable[[], Any]) -> None:
        """connect_again: function that opens another connection to the same server; it is closed with the first one."""
        self._connection, self._connect_again = connection, connect_again

    def query(self, sql: str, *values: object) -> Sequence[Any]:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(sql.replace("?", "%s"), values or None)
            return cursor.fetchall() if cursor.description else ()

    @staticmethod
    @abstractmethod
    def address(uri: str) -> Any:
        """Return the SQLAlchemy URL of the database, with the options of the connection."""

    @staticmethod
    @abstractmethod
    def error_code(error: Any) -> tuple[str, Any]:
        """Return (code, message) of an error of the driver."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a read-only transaction, whose queries see one snapshot of the database."""


def can_read(location: StoreLocation) -> bool:
    """Return whether an installed driver can read the store; MLflow's client, which reads other stores, is slower."""
    if (kind := _kind_of_server(location)) is None:
        return False
    import sqlalchemy

    try:
        dialect = kind.address(location.uri).get_dialect()
        if dialect.driver not in kind.drivers:
            return False
        dialect.import_dbapi()
    except ImportError:
        return False
    except (ValueError, sqlalchemy.exc.ArgumentError):
        return True  # `connect` reports the error in the address
    return True


def _kind_of_server(location: StoreLocation) -> type[ServerDatabase] | None:
    if location.kind != "database":
        return None
    scheme = location.uri.lower()
    return PostgresDatabase if scheme.startswith("postgres") else MysqlDatabase if scheme.startswith("mysql") else None


@contextmanager
def connect(location: StoreLocation) -> Iterator[ServerDatabase]:
    """Open a read-only connection to a consistent snapshot of the database. Database errors are raised as AdvisorError."""
    import sqlalchemy

    kind = _kind_of_server(location)
    assert kind is not None
    try:
        url = kind.address(location.uri)
        driver = url.get_dialect().import_dbapi()
        arguments, options = url.get_dialect()(dbapi=driver).create_connect_args(url)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        text = f"{location.display!r} is not the address of a database; an example is {kind.example_address}"
        raise AdvisorError(text) from None
    try:
        with ExitStack() as connections:

            def connect_again() -> Any:
                return connections.enter_context(closing(driver.connect(*arguments, **options)))

            try:
                connection = kind(connect_again(), connect_again)
            except (OSError, RuntimeError, TypeError, ValueError) as error:  # for example, an unknown option or a missing file
                raise AdvisorError(f"cannot open {location.display}: {one_line_error(error)}") from error
            connection.begin()
            database.check_schema_version(connection, location.display)
            yield connection
    except driver.Error as error:
        raise explain_error(error, location.display, kind) from error


def explain_error(error: Any, where: str, kind: type[ServerDatabase]) -> AdvisorError:
    """Return the AdvisorError for an error of a driver. where: text that names the store."""
    code, text = kind.error_code(error)
    if code == _NO_DATABASE_CODE or (code in _NO_TABLE_CODES and "alembic_version" in str(error)):
        return AdvisorError(f"{where} holds no MLflow store; pass the database that your tracking server uses")
    if code in _OLD_SCHEMA_CODES:
        return AdvisorError(f"{where} has the schema of an older MLflow; back it up and run: mlflow db upgrade")
    if code in _NO_PRIVILEGE_CODES:
        return AdvisorError(f"{where} denies reading; the user needs SELECT on the tables of MLflow")
    if code.startswith(_CONNECTION_ERROR_PREFIXES) if kind is PostgresDatabase else code in _CONNECTION_ERROR_CODES:
        return UnansweredError(f"cannot reach {where}; is the database running, and are user and password right?")
    return AdvisorError(f"cannot read {where}: {one_line_error(text)}")


# A binary COPY returns the steps, values and times of each curve as packed numbers that NumPy reads directly.
# One subquery per run makes the server use the index on points even if its table statistics are out of date.
# All selected columns belong to the primary key of the table, so no value is NULL.
_IS_SYSTEM_METRIC = f"starts_with(m.key, '{collect.SYSTEM_METRIC_PREFIX}')"
_POSTGRES_CURVES_QUERY = """
    COPY (SELECT w.i - 1, c.* FROM unnest(%s::text[]) WITH ORDINALITY AS w(id, i) CROSS JOIN LATERAL (
        SELECT m.key, string_agg(int8send(m.step::int8), ''),
               string_agg(float8send(CASE WHEN m.is_nan THEN 'NaN' ELSE m.value::float8 END), ''),
               string_agg(int8send(m.timestamp::int8), '')
        FROM metrics m WHERE m.run_uuid = w.id {condition} GROUP BY m.key
    ) AS c) TO STDOUT (FORMAT BINARY)
"""


class PostgresDatabase(ServerDatabase):
    drivers = ("psycopg",)
    example_address = "postgresql://user@host/name"

    @staticmethod
    def address(uri: str) -> Any:
        import sqlalchemy

        url = sqlalchemy.make_url(uri).set(drivername="postgresql+psycopg")
        return url.set(query={"connect_timeout": str(_CONNECT_TIMEOUT_S), **url.query})

    @staticmethod
    def error_code(error: Any) -> tuple[str, Any]:
        import psycopg

        # The code is missing if the connection failed or timed out.
        lost_connection_code = "08" if isinstance(error, psycopg.OperationalError) else ""
        return error.sqlstate or lost_connection_code, error

    def begin(self) -> None:
        import psycopg

        self._connection.read_only = True
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        # Enough memory to group a run's points without temporary files, and no JIT compilation.
        self.query("SET LOCAL work_mem = '256MB'")
        self.query("SET LOCAL jit = off")

    @cached_property
    def _connections(self) -> list[PostgresDatabase]:
        """This connection and others to the same snapshot, at most one for each of the server's parallel workers per query. There
        are fewer if the server refuses them or does not share snapshots."""
        import psycopg

        connections = [self]
        with suppress(psycopg.Error):
            # Only this check runs in a nested transaction, whose errors are harmless but whose snapshot cannot be exported.
            with self._connection.transaction():
                ((granted,),) = self.query("SELECT has_function_privilege(to_regprocedure('pg_export_snapshot()'), 'EXECUTE')")
            if not granted:
                return connections
            sql = "SELECT pg_export_snapshot(), current_setting('max_parallel_workers_per_gather')::int"
            ((snapshot, workers),) = self.query(sql)
            for _ in range(min(workers, _MAX_HELPER_CONNECTIONS)):
                connection = PostgresDatabase(self._connect_again(), self._connect_again)
                connection.begin()
                connection.query(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                connections.append(connection)
        return connections

    def read_in_shares(
        self, items: Sequence[database.Item], read: Callable[[database.RunDatabase, Sequence[database.Item]], database.Result]
    ) -> Sequence[database.Result]:
        # Several connections read in parallel, because the server takes most of the time.
        if len(items) < _MIN_RUNS_PER_CONNECTION:
            return [read(self, items)]
        connection_count = len(self._connections)
        with ThreadPoolExecutor(connection_count) as pool:
            try:
                return list(pool.map(read, self._connections, [items[k::connection_count] for k in range(connection_count)]))
            except BaseException:  # also after an interrupt, so that the pool waits for no other connection's query
                for connection in self._connections:
                    connection._connection.cancel()
                raise

    def point_reader(self, metrics: Mapping[str, int]) -> database.PointReader:
        def read(ids: Sequence[str]) -> database.PointBlock:
            # Excluding system metrics takes a fifth of the server's time, so it is done only if a run has any.
            has_system = f"SELECT 1 FROM latest_metrics m WHERE m.run_uuid = ANY(%s) AND {_IS_SYSTEM_METRIC} LIMIT 1"
            condition = f"AND NOT {_IS_SYSTEM_METRIC}" if self.query(has_system, ids) else ""
            sql = _POSTGRES_CURVES_QUERY.format(condition=condition)
            with self._connection.cursor() as cursor, cursor.copy(sql, (ids,)) as copy:
                copy.set_types(("int8", "text", "bytea", "bytea", "bytea"))
                curves = [(i * len(metrics) + metrics[key], *columns) for i, key, *columns in copy.rows() if key in metrics]
            if not curves:
                return np.empty(0, dtype=database.POINT_DTYPE)
            groups, *columns = zip(*sorted(curves), strict=True)
            counts = [len(steps) // 8 for steps in columns[0]]
            block = np.empty(sum(counts), dtype=database.POINT_DTYPE)
            block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
            for name, kind, column in zip(("step", "value", "time"), (">i8", ">f8", ">i8"), columns, strict=True):
                block[name] = np.frombuffer(b"".join(column), kind)
            return block

        return read


_MYSQL_SESSION_SETTINGS = (
    "SET SESSION group_concat_max_len = 1073741824",  # the maximum in every version of MySQL; packets may be limited further
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
_MYSQL_COLUMNS = (
    "m.step",
    f"CASE WHEN m.is_nan OR m.value IS NULL THEN {database.NAN_PLACEHOLDER!r} ELSE m.value END",
    "coalesce(m.timestamp, 0)",
)
# The query fixes the join order and the index; otherwise, the query optimizer may scan all runs for each curve.
_MYSQL_JOIN = """
    FROM latest_metrics l STRAIGHT_JOIN metrics m FORCE INDEX (index_metrics_run_uuid)
    ON m.run_uuid = l.run_uuid AND m.key = l.key
"""
_MYSQL_CURVES_QUERY = f"""
    SELECT l.run_uuid, l.key, count(*), group_concat({", ',', ".join(_MYSQL_COLUMNS)}, '\n' SEPARATOR '')
    {_MYSQL_JOIN} WHERE l.run_uuid IN {{ids}} AND l.key IN {{metrics}} GROUP BY l.run_uuid, l.key
"""
_MYSQL_CURVE_QUERY = f"SELECT {', '.join(_MYSQL_COLUMNS)} {_MYSQL_JOIN} WHERE l.run_uuid = ? AND l.key = ?"


class MysqlDatabase(ServerDatabase):
    """The server concatenates the points of each curve into one text, which Arrow parses."""

    drivers = ("pymysql", "mysqldb")
    example_address = "mysql+pymysql://user@host/name"

    @staticmethod
    def address(uri: str) -> Any:
        import sqlalchemy

        certificates = {  # from MLflow's environment variables
            name: path for name in ("ssl_ca", "ssl_cert", "ssl_key") if (path := os.environ.get(f"MLFLOW_MYSQL_{name.upper()}"))
        }
        url = sqlalchemy.make_url(uri)
        options = {"connect_timeout": str(_CONNECT_TIMEOUT_S), **certificates, **url.query, "charset": "utf8mb4"}
        return url.set(query=options)

    @staticmethod
    def error_code(error: Any) -> tuple[str, Any]:
        # The drivers report a lost connection without a code.
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        return str(code), error.args[-1] if error.args else error

    def begin(self) -> None:
        for sql in _MYSQL_SESSION_SETTINGS:
            self.query(sql)

    def point_reader(self, metrics: Mapping[str, int]) -> database.PointReader:
        def read(ids: Sequence[str]) -> database.PointBlock:
            ids_sql, metrics_sql = database.sql_placeholders(len(ids)), database.sql_placeholders(len(metrics))
            sql = _MYSQL_CURVES_QUERY.format(ids=ids_sql, metrics=metrics_sql)
            run_indices = {id: i for i, id in enumerate(ids)}
            groups, counts, texts, truncated = [], [], [], []
            for id, key, count, text in self.query(sql, *ids, *metrics):
                if key not in metrics:
                    continue
                group = run_indices[id] * len(metrics) + metrics[key]
                if text is not None and text.endswith("\n") and text.count("\n") == count:
                    groups.append(group)
                    counts.append(count)
                    texts.append(text)
                else:
                    rows = ((group, *row) for row in self.query(_MYSQL_CURVE_QUERY, id, key))
                    truncated.append(np.fromiter(rows, dtype=database.POINT_DTYPE))
            block = _parse_points("".join(texts).encode(), sum(counts))
            block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
            block = np.concatenate([block, *truncated])
            block["value"][block["value"] == database.NAN_PLACEHOLDER] = np.nan
            return block

        return read


def _parse_points(lines: bytes, count: int) -> database.PointBlock:
    """Return points of shape (n,), without `group`, from lines of text with a step, a value and a time."""
    import pyarrow as pa
    from pyarrow import csv

    block = np.empty(count, dtype=database.POINT_DTYPE)
    if not count:
        return block
    types = {"step": pa.int64(), "value": pa.float64(), "time": pa.int64()}
    read, parse = csv.ReadOptions(column_names=list(types), use_threads=False), csv.ParseOptions(quote_char=False)
    table = csv.read_csv(pa.BufferReader(lines), read, parse, csv.ConvertOptions(column_types=types))
    for name in types:
        block[name] = table[name].to_numpy()
    return block
