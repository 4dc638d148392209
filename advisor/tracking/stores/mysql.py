"""Reads an experiment from MLflow's MySQL or MariaDB database with a few read-only queries, which see the same snapshot of the
data.

The database concatenates the points of each curve into one text, which Arrow parses. Fetching one row per point would take
several times as long. Most MySQL databases ignore case when they compare names. In these databases, one run cannot have two
metrics `loss` and `Loss`, but different runs can. Metric names that differ only in case count as two metrics, as in MLflow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.model.errors import AdvisorError
from advisor.tracking.points import collect
from advisor.tracking.stores import database
from advisor.tracking.stores.location import StoreLocation

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError

    Connection = sqlalchemy.Connection

_SUPPORTED_DRIVERS = ("pymysql", "mysqldb")
_CONNECT_TIMEOUT_S = 5
_POINTS_PER_QUERY = 1_000_000
"""Approximate maximum number of points that one query returns. A point takes about 40 bytes as text. Long queries are harmless,
because our snapshot does not block processes that write to the database."""
_MAX_IDS_PER_QUERY = 1000
"""Maximum number of run ids that one query contains. If a query has more run ids, some servers scan the whole table."""
_SESSION_SETTINGS = (
    "SET SESSION group_concat_max_len = 1073741824",  # the maximum in every version of MySQL; packets may be limited further
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
_CONNECTION_ERROR_CODES = {
    *(0, 1040, 1044, 1045, 1049, 1053, 1129, 1130, 1226, 1698, 1927, 2002, 2003, 2005, 2006, 2013, 2026, 2055)
}
"""MySQL error codes for a connection that was refused, unauthorised, lost, or closed by a server that is stopping."""
_NO_TABLE_CODE, _NO_DATABASE_CODE, _NO_COLUMN_CODE, _NO_INDEX_CODE = 1146, 1046, 1054, 1176
_NO_PRIVILEGE_CODES = (1142, 1143)


class MysqlStore(database.SqlTrackingStore):
    """A `store.Store` that reads MLflow's MySQL or MariaDB database."""

    @contextmanager
    def open(self) -> Iterator[database.RunDatabase]:
        with connect(self.location) as connection:
            yield _MysqlDatabase(connection)


def can_read(location: StoreLocation) -> bool:
    """Return whether the store is a MySQL or MariaDB database whose URI names a supported and installed driver.

    A database with another driver is read by MLflow's client, which is slower.
    """
    if location.kind != "database" or not location.uri.lower().startswith("mysql"):
        return False
    import sqlalchemy

    try:
        dialect = sqlalchemy.make_url(location.uri).get_dialect()
        if dialect.driver not in _SUPPORTED_DRIVERS:
            return False
        dialect.import_dbapi()
    except ImportError:
        return False
    except (ValueError, sqlalchemy.exc.ArgumentError):
        return True  # `connect` reports the error in the address
    return True


# --- connection -----------------------------------------------------------------------------------------------------------------


@contextmanager
def connect(location: StoreLocation) -> Iterator[Connection]:
    """Open a read-only connection to a consistent snapshot of the database. Database errors are raised as AdvisorError."""
    import sqlalchemy

    try:
        with _connect(location) as connection:
            for sql in _SESSION_SETTINGS:
                connection.exec_driver_sql(sql)
            _check_schema(connection, location)
            yield connection
    except sqlalchemy.exc.DBAPIError as error:
        raise _explain_error(error, location) from error


def _connect(location: StoreLocation) -> Connection:
    """Open a database connection without a connection pool."""
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(location.uri)
        options = {"connect_timeout": str(_CONNECT_TIMEOUT_S), **_certificate_paths(), **url.query, "charset": "utf8mb4"}
        engine = sqlalchemy.create_engine(url.set(query=options), poolclass=sqlalchemy.NullPool)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise AdvisorError(
            f"{location.display!r} is not the address of a database; an example is mysql+pymysql://user@host/name"
        ) from None
    try:
        return engine.connect()
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # for example, an unknown option or a missing file
        raise AdvisorError(f"cannot open {location.display}: {database.shorten_message(error)}") from error


def _certificate_paths() -> dict[str, str]:
    """Return the paths of the TLS certificates from MLflow's environment variables."""
    return {
        name: path for name in ("ssl_ca", "ssl_cert", "ssl_key") if (path := os.environ.get(f"MLFLOW_MYSQL_{name.upper()}"))
    }


def query(connection: Connection, sql: str, **values: object) -> Sequence[Any]:
    """Return the rows of an SQL query. `:name` in the query stands for a value, or for a list of values in parentheses."""
    import sqlalchemy

    lists: list[Any] = [sqlalchemy.bindparam(name, expanding=True) for name, value in values.items() if isinstance(value, list)]
    return connection.execute(sqlalchemy.text(sql).bindparams(*lists), values).fetchall()


def _check_schema(connection: Connection, location: StoreLocation) -> None:
    versions = query(connection, "SELECT version_num FROM alembic_version")
    database.check_schema_version(versions[0][0] if versions else None, location.display)


def _explain_error(error: DBAPIError, location: StoreLocation) -> AdvisorError:
    where, arguments = location.display, error.orig.args if error.orig is not None else ()
    code = arguments[0] if arguments and isinstance(arguments[0], int) else 0
    if code == _NO_DATABASE_CODE or (code == _NO_TABLE_CODE and "alembic_version" in str(arguments)):
        return database.unreadable_database_error("no store", where)
    if code in (_NO_TABLE_CODE, _NO_COLUMN_CODE, _NO_INDEX_CODE):
        return database.unreadable_database_error("old schema", where)
    if code in _NO_PRIVILEGE_CODES:
        return database.unreadable_database_error("no privilege", where)
    if code in _CONNECTION_ERROR_CODES:
        return database.unreadable_database_error("out of reach", where)
    return AdvisorError(f"cannot read {where}: {database.shorten_message(arguments[-1] if arguments else error.orig)}")


# --- queries --------------------------------------------------------------------------------------------------------------------

_EXACT_KEY_CONDITION = "`key` = :key AND CAST(CONVERT(`key` USING utf8mb4) AS BINARY) = CAST(:key AS BINARY)"
_PARAMS_QUERY = f"SELECT p.run_uuid, p.`key`, left(p.value, {collect.MAX_TEXT_CHARS}) FROM params p WHERE p.run_uuid IN :ids"
_TAGS_QUERY = f"SELECT t.run_uuid, t.`key`, left(t.value, {collect.MAX_TEXT_CHARS}) FROM tags t WHERE t.run_uuid IN :ids AND "
_IS_ESSENTIAL_TAG = "(t.`key` LIKE 'advisor.%' OR t.`key` LIKE 'mlflow.source.%' OR t.`key` IN :names)"
# Selects user tags. The cast to BINARY makes `LIKE` case-sensitive.
_IS_USER_TAG = "t.`key` NOT LIKE CAST('mlflow.%' AS BINARY) AND t.`key` NOT LIKE CAST('advisor.%' AS BINARY)"
_USER_TAG_COUNTS_QUERY = (
    f"SELECT t.run_uuid, count(*) FROM tags t WHERE t.run_uuid IN :ids AND {_IS_USER_TAG} GROUP BY t.run_uuid"
)
_FIRST_TAGS_BY_NAME = f" ORDER BY CAST(CONVERT(t.`key` USING utf8mb4) AS BINARY) LIMIT {collect.MAX_USER_TAGS}"
_LAST_POINTS_QUERY = """
    SELECT m.run_uuid, m.`key`, coalesce(m.timestamp, 0), m.step, m.value FROM latest_metrics m WHERE m.run_uuid IN :ids
"""
_POINT_COUNTS_QUERY = "SELECT m.run_uuid, count(*) FROM metrics m WHERE m.run_uuid IN :ids GROUP BY m.run_uuid"

_VALUE_EXPRESSION = "CASE WHEN m.is_nan OR m.value IS NULL THEN :nan ELSE m.value END"
# The query fixes the join order and the index; otherwise, the query optimizer may scan all runs for each curve.
_LATEST_METRICS_JOIN = """
    FROM latest_metrics l STRAIGHT_JOIN metrics m FORCE INDEX (index_metrics_run_uuid)
    ON m.run_uuid = l.run_uuid AND m.`key` = l.`key`
"""
_CURVES_QUERY = f"""
    SELECT l.run_uuid, l.`key`, count(*),
           group_concat(m.step, ',', {_VALUE_EXPRESSION}, ',', coalesce(m.timestamp, 0), '\n' SEPARATOR '')
    {_LATEST_METRICS_JOIN} WHERE l.run_uuid IN :ids AND l.`key` IN :names GROUP BY l.run_uuid, l.`key`
"""
_CURVE_QUERY = f"""
    SELECT m.step, {_VALUE_EXPRESSION}, coalesce(m.timestamp, 0) {_LATEST_METRICS_JOIN}
    WHERE l.run_uuid = :id AND CAST(CONVERT(l.`key` USING utf8mb4) AS BINARY) = CAST(:key AS BINARY)
"""


class _MysqlDatabase:
    """A `database.RunDatabase` for MySQL and MariaDB."""

    run_order = "start_time, CAST(run_uuid AS BINARY)"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def query(self, sql: str, *values: str) -> Sequence[Any]:
        return query(self._connection, sql.replace("key = ?", _EXACT_KEY_CONDITION), **dict(zip(["key"], values, strict=False)))

    def _query_runs(self, sql: str, ids: Sequence[str], **values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query on the runs `:ids`. In each row, the index of the run in `ids` replaces the run id in the
        first column."""
        places = {id: i for i, id in enumerate(ids) if id}
        names = list(places)
        for at in range(0, len(names), _MAX_IDS_PER_QUERY):
            for id, *rest in query(self._connection, sql, ids=names[at : at + _MAX_IDS_PER_QUERY], **values):
                yield places[id], *rest

    def params(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        return self._query_runs(_PARAMS_QUERY, ids)

    def tags(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the tags. If a run has too many tags, a separate query reads them, because MySQL 5.7 has no window functions."""
        crowded = {place for place, count in self._query_runs(_USER_TAG_COUNTS_QUERY, ids) if count > collect.MAX_USER_TAGS}
        yield from self._query_runs(_TAGS_QUERY + _IS_ESSENTIAL_TAG, ids, names=list(collect.MLFLOW_TAGS))
        yield from self._query_runs(
            _TAGS_QUERY + _IS_USER_TAG, [id if place not in crowded else "" for place, id in enumerate(ids)]
        )
        for place in crowded:
            for _, key, value in self._query_runs(_TAGS_QUERY + _IS_USER_TAG + _FIRST_TAGS_BY_NAME, [ids[place]]):
                yield place, key, value

    def last_points(self, ids: list[str]) -> Iterator[Any]:
        return self._query_runs(_LAST_POINTS_QUERY, ids)

    def revisions(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        """The revision of a run is its number of points."""
        return self._query_runs(_POINT_COUNTS_QUERY, ids)

    def blocks(self, metrics: Mapping[str, int], ids: list[str]) -> Iterator[tuple[int, database.PointBlock]]:
        def read(some: list[str]) -> database.PointBlock:
            curves = self._query_runs(_CURVES_QUERY, some, names=list(metrics), nan=database.NAN_PLACEHOLDER)
            return _parse_curves(self._connection, curves, metrics, some)

        return database.read_blocks(read, ids, len(metrics), _POINTS_PER_QUERY)


# --- points ---------------------------------------------------------------------------------------------------------------------


def _parse_curves(
    connection: Connection, curves: Iterator[tuple[Any, ...]], metrics: Mapping[str, int], ids: list[str]
) -> database.PointBlock:
    """Return the points of curves, given as text. If the text of a curve is truncated, the curve is read again, one row per
    point.

    curves: (run index, metric, number of points, points as text) of each curve.
    """
    groups, counts, texts, truncated = [], [], [], []
    for place, key, count, text in curves:
        if key not in metrics:
            continue
        group = place * len(metrics) + metrics[key]
        if text is not None and text.endswith("\n") and text.count("\n") == count:
            groups.append(group)
            counts.append(count)
            texts.append(text)
        else:
            truncated.append((group, ids[place], key))
    block = _parse_points("".join(texts).encode(), sum(counts))
    block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
    block = np.concatenate([block, *(_read_curve_by_row(connection, *curve) for curve in truncated)])
    block["value"][block["value"] == database.NAN_PLACEHOLDER] = np.nan
    return block


def _parse_points(lines: bytes, count: int) -> database.PointBlock:
    """Return points of shape (n,) from lines of text with a step, a value and a time. The field `group` of the returned points
    is not set."""
    import pyarrow as pa
    from pyarrow import csv

    block = np.empty(count, dtype=database.POINT_DTYPE)
    if not count:
        return block
    types = {"step": pa.int64(), "value": pa.float64(), "time": pa.int64()}
    table = csv.read_csv(
        pa.BufferReader(lines),
        read_options=csv.ReadOptions(column_names=list(types), use_threads=False),
        parse_options=csv.ParseOptions(quote_char=False),
        convert_options=csv.ConvertOptions(column_types=types),
    )
    for name in types:
        block[name] = table[name].to_numpy()
    return block


def _read_curve_by_row(connection: Connection, group: int, id: str, key: str) -> database.PointBlock:
    import sqlalchemy

    sql = sqlalchemy.text(_CURVE_QUERY).execution_options(stream_results=True)
    with connection.execute(sql, {"id": id, "key": key, "nan": database.NAN_PLACEHOLDER}) as rows:
        return np.fromiter(((group, *row) for row in rows), dtype=database.POINT_DTYPE)
