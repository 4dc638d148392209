"""Reads an experiment from MLflow's MySQL or MariaDB database by a few read-only queries in one snapshot.

The database joins each curve into one text, which Arrow parses: fetching a row for each point would take several times as long.
These databases mostly compare names without regard to case: they refuse a run a second metric `Loss` beside its `loss`, while two
runs may have one each. Such names are two metrics here, as they are to MLflow.
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
from advisor.tracking.stores.location import Location

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError

    Connection = sqlalchemy.Connection

_DRIVERS = ("pymysql", "mysqldb")
_CONNECT_TIMEOUT_S = 5
_POINTS_AT_ONCE = 1_000_000
"""Maximum points of one query, roughly 40 bytes each as text; a snapshot blocks no writer."""
_IDS_AT_ONCE = 1000
"""Maximum runs named in one query; with more, some servers scan the whole table."""
_SETTINGS = (
    "SET SESSION group_concat_max_len = 1073741824",  # the maximum of every version; a packet may hold less
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
_CONNECTION_ERRORS = {
    *(0, 1040, 1044, 1045, 1049, 1053, 1129, 1130, 1226, 1698, 1927, 2002, 2003, 2005, 2006, 2013, 2026, 2055)
}
"""Codes for connections that were refused, not authorised, broken, or closed by a server that stops."""
_NO_TABLE, _NO_DATABASE, _NO_COLUMN, _NO_INDEX = 1146, 1046, 1054, 1176
_NO_PRIVILEGE = (1142, 1143)


class MysqlStore(database.SqlStore):
    """MLflow's MySQL or MariaDB database."""

    @contextmanager
    def open(self) -> Iterator[database.Database]:
        """As `database.SqlStore`."""
        with connect(self.location) as connection:
            yield _Database(connection)


def can_read(location: Location) -> bool:
    """Whether the store is a MySQL or MariaDB database whose address names an installed driver that we know.

    MLflow's client reads other ones, slowly.
    """
    if location.kind != "database" or not location.uri.lower().startswith("mysql"):
        return False
    import sqlalchemy

    try:
        dialect = sqlalchemy.make_url(location.uri).get_dialect()
        if dialect.driver not in _DRIVERS:
            return False
        dialect.import_dbapi()
    except ImportError:
        return False
    except (ValueError, sqlalchemy.exc.ArgumentError):
        return True  # `connect` says what is wrong with the address
    return True


# --- connection -----------------------------------------------------------------------------------------------------------------


@contextmanager
def connect(location: Location) -> Iterator[Connection]:
    """Open a read-only connection in one snapshot of the database; its errors come out as AdvisorError."""
    import sqlalchemy

    try:
        with _connect(location) as connection:
            for sql in _SETTINGS:
                connection.exec_driver_sql(sql)
            _check_schema(connection, location)
            yield connection
    except sqlalchemy.exc.DBAPIError as error:
        raise _explain(error, location) from error


def _connect(location: Location) -> Connection:
    """Open a connection without a pool."""
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(location.uri)
        options = {"connect_timeout": str(_CONNECT_TIMEOUT_S), **_certificates(), **url.query, "charset": "utf8mb4"}
        engine = sqlalchemy.create_engine(url.set(query=options), poolclass=sqlalchemy.NullPool)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise AdvisorError(
            f"{location.display!r} is no address of a database; one is mysql+pymysql://user@host/name"
        ) from None
    try:
        return engine.connect()
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # an unknown option, a missing file
        raise AdvisorError(f"cannot open {location.display}: {database.short(error)}") from error


def _certificates() -> dict[str, str]:
    """Return the certificates that MLflow's environment variables name."""
    return {
        name: path
        for name in ("ssl_ca", "ssl_cert", "ssl_key")
        if (path := os.environ.get(f"MLFLOW_MYSQL_{name.upper()}"))
    }


def query(connection: Connection, sql: str, **values: object) -> Sequence[Any]:
    """Return the rows of a query with `:name` for each value; a list of values is expanded in brackets."""
    import sqlalchemy

    lists: list[Any] = [
        sqlalchemy.bindparam(name, expanding=True) for name, value in values.items() if isinstance(value, list)
    ]
    return connection.execute(sqlalchemy.text(sql).bindparams(*lists), values).fetchall()


def _check_schema(connection: Connection, location: Location) -> None:
    versions = query(connection, "SELECT version_num FROM alembic_version")
    database.check_version(versions[0][0] if versions else None, location.display)


def _explain(error: DBAPIError, location: Location) -> AdvisorError:
    where, arguments = location.display, error.orig.args if error.orig is not None else ()
    code = arguments[0] if arguments and isinstance(arguments[0], int) else 0
    if code == _NO_DATABASE or (code == _NO_TABLE and "alembic_version" in str(arguments)):
        return database.refusal("no store", where)
    if code in (_NO_TABLE, _NO_COLUMN, _NO_INDEX):
        return database.refusal("old schema", where)
    if code in _NO_PRIVILEGE:
        return database.refusal("no privilege", where)
    if code in _CONNECTION_ERRORS:
        return database.refusal("out of reach", where)
    return AdvisorError(f"cannot read {where}: {database.short(arguments[-1] if arguments else error.orig)}")


# --- queries --------------------------------------------------------------------------------------------------------------------

_EXACT_KEY = "`key` = :key AND CAST(CONVERT(`key` USING utf8mb4) AS BINARY) = CAST(:key AS BINARY)"
_PARAMS = f"SELECT p.run_uuid, p.`key`, left(p.value, {collect.MAX_TEXT}) FROM params p WHERE p.run_uuid IN :ids"
_TAGS = f"SELECT t.run_uuid, t.`key`, left(t.value, {collect.MAX_TEXT}) FROM tags t WHERE t.run_uuid IN :ids AND "
_ESSENTIAL = "(t.`key` LIKE 'advisor.%' OR t.`key` LIKE 'mlflow.source.%' OR t.`key` IN :names)"
# Other tags; the cast makes `LIKE` case-sensitive.
_OTHER = "t.`key` NOT LIKE CAST('mlflow.%' AS BINARY) AND t.`key` NOT LIKE CAST('advisor.%' AS BINARY)"
_OTHER_COUNTS = f"SELECT t.run_uuid, count(*) FROM tags t WHERE t.run_uuid IN :ids AND {_OTHER} GROUP BY t.run_uuid"
_FIRST = f" ORDER BY CAST(CONVERT(t.`key` USING utf8mb4) AS BINARY) LIMIT {collect.MAX_TAGS}"
_LAST_POINTS = """
    SELECT m.run_uuid, m.`key`, coalesce(m.timestamp, 0), m.step, m.value FROM latest_metrics m WHERE m.run_uuid IN :ids
"""
_COUNTS = "SELECT m.run_uuid, count(*) FROM metrics m WHERE m.run_uuid IN :ids GROUP BY m.run_uuid"

_VALUE = "CASE WHEN m.is_nan OR m.value IS NULL THEN :nan ELSE m.value END"
# We fix the order of the join and the index: the optimizer may otherwise scan all runs for each curve.
_FROM = """
    FROM latest_metrics l STRAIGHT_JOIN metrics m FORCE INDEX (index_metrics_run_uuid)
    ON m.run_uuid = l.run_uuid AND m.`key` = l.`key`
"""
_CURVES = f"""
    SELECT l.run_uuid, l.`key`, count(*),
           group_concat(m.step, ',', {_VALUE}, ',', coalesce(m.timestamp, 0), '\n' SEPARATOR '')
    {_FROM} WHERE l.run_uuid IN :ids AND l.`key` IN :names GROUP BY l.run_uuid, l.`key`
"""
_CURVE = f"""
    SELECT m.step, {_VALUE}, coalesce(m.timestamp, 0) {_FROM}
    WHERE l.run_uuid = :id AND CAST(CONVERT(l.`key` USING utf8mb4) AS BINARY) = CAST(:key AS BINARY)
"""


class _Database:
    """A `database.Database`."""

    run_order = "start_time, CAST(run_uuid AS BINARY)"

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def query(self, sql: str, *values: str) -> Sequence[Any]:
        return query(self._connection, sql.replace("key = ?", _EXACT_KEY), **dict(zip(["key"], values, strict=False)))

    def _of_runs(self, sql: str, ids: Sequence[str], **values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query for the runs `:ids`; each row's first value, a run's id, becomes its index in `ids`."""
        places = {id: i for i, id in enumerate(ids) if id}
        names = list(places)
        for at in range(0, len(names), _IDS_AT_ONCE):
            for id, *rest in query(self._connection, sql, ids=names[at : at + _IDS_AT_ONCE], **values):
                yield places[id], *rest

    def params(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        return self._of_runs(_PARAMS, ids)

    def tags(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        """Without window functions, which MySQL 5.7 lacks: a query for each of the few runs with too many tags."""
        crowded = {place for place, count in self._of_runs(_OTHER_COUNTS, ids) if count > collect.MAX_TAGS}
        yield from self._of_runs(_TAGS + _ESSENTIAL, ids, names=list(collect.MLFLOW_TAGS))
        yield from self._of_runs(_TAGS + _OTHER, [id if place not in crowded else "" for place, id in enumerate(ids)])
        for place in crowded:
            for _, key, value in self._of_runs(_TAGS + _OTHER + _FIRST, [ids[place]]):
                yield place, key, value

    def last_points(self, ids: list[str]) -> Iterator[Any]:
        return self._of_runs(_LAST_POINTS, ids)

    def revisions(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        """The number of each run's points."""
        return self._of_runs(_COUNTS, ids)

    def blocks(self, metrics: Mapping[str, int], ids: list[str]) -> Iterator[tuple[int, database.Block]]:
        def read(some: list[str]) -> database.Block:
            curves = self._of_runs(_CURVES, some, names=list(metrics), nan=database.NAN)
            return _block(self._connection, curves, metrics, some)

        return database.read_blocks(read, ids, len(metrics), _POINTS_AT_ONCE)


# --- points ---------------------------------------------------------------------------------------------------------------------


def _block(
    connection: Connection, curves: Iterator[tuple[Any, ...]], metrics: Mapping[str, int], ids: list[str]
) -> database.Block:
    """Return the points of curves (run, metric, number of points, text); truncated texts are read again, row by row."""
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
    block = _parse("".join(texts).encode(), sum(counts))
    block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
    block = np.concatenate([block, *(_row_by_row(connection, *curve) for curve in truncated)])
    block["value"][block["value"] == database.NAN] = np.nan
    return block


def _parse(lines: bytes, count: int) -> database.Block:
    """Return the points of lines of step, value and time; their groups are left unset."""
    import pyarrow as pa
    from pyarrow import csv

    block = np.empty(count, dtype=database.POINT)
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


def _row_by_row(connection: Connection, group: int, id: str, key: str) -> database.Block:
    import sqlalchemy

    sql = sqlalchemy.text(_CURVE).execution_options(stream_results=True)
    with connection.execute(sql, {"id": id, "key": key, "nan": database.NAN}) as rows:
        return np.fromiter(((group, *row) for row in rows), dtype=database.POINT)
