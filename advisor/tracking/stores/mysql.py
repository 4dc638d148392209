"""Reads an experiment straight from MLflow's MySQL or MariaDB database: a few set-based, read-only queries of one snapshot.

Points come as one text a curve, which the database joins and Arrow parses: a row a point would cost Python most of the time.
Names are compared as these databases were told to, mostly without regard to case: they refuse a run a second metric `Loss`
beside its `loss`, while two runs may have one each. Here such names are two metrics, as they are to MLflow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.model.errors import AdvisorError
from advisor.tracking.points import collect
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import database
from advisor.tracking.stores.location import Location
from advisor.tracking.stores.lookup import Listed

if TYPE_CHECKING:
    import sqlalchemy
    from sqlalchemy.exc import DBAPIError

    Connection = sqlalchemy.Connection

_DRIVERS = ("pymysql", "mysqldb")
_CONNECT_S = 5
_POINTS_AT_ONCE = 1_000_000
"""Some 40 bytes each on their way; reading keeps no writer waiting here."""
_IDS_AT_ONCE = 1000
"""Runs named in one query: more, and some servers would rather look through the whole table."""
_SETTINGS = (
    "SET SESSION group_concat_max_len = 1073741824",  # the most that every version takes; what is sent at once may be less
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION TRANSACTION READ ONLY",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
_UNREACHED = {0, 1040, 1044, 1045, 1049, 1053, 1129, 1130, 1226, 1698, 1927, 2002, 2003, 2005, 2006, 2013, 2026, 2055}
"""Codes of errors of the connection: refused, not let in, broken, ended by a server that stops."""
_NO_TABLE, _NO_DATABASE, _NO_COLUMN, _NO_INDEX = 1146, 1046, 1054, 1176
_NO_PRIVILEGE = (1142, 1143)
_OWN = "t.`key` NOT LIKE CAST('mlflow.%' AS BINARY) AND t.`key` NOT LIKE CAST('advisor.%' AS BINARY)"
"""In a query: the tags `t` that people gave; `LIKE` is told to look at case."""


def is_possible(location: Location) -> bool:
    """Whether the store is a MySQL or MariaDB database whose address names a driver that is installed and known here.

    MLflow's client reads it otherwise, slowly.
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


def list_experiments(location: Location) -> list[Listed]:
    """All experiments of the store, also deleted ones."""
    with connect(location) as connection:
        return _Database(connection).experiments()


def read(
    location: Location,
    experiment: str,
    *,
    filter: str | None,
    system_metrics: bool,
    on_progress: Callable[[int, int], None],
) -> Experiment:
    """The experiment of that name or id; see `store.read_experiment`."""
    with connect(location) as connection:
        return database.read(
            _Database(connection),
            location,
            experiment,
            filter=filter,
            system_metrics=system_metrics,
            on_progress=on_progress,
            points_at_once=_POINTS_AT_ONCE,
        )


# --- connection -----------------------------------------------------------------------------------------------------------------


@contextmanager
def connect(location: Location) -> Iterator[Connection]:
    """A connection that sees one state of the database and can write nothing; its errors come out as AdvisorError."""
    import sqlalchemy

    try:
        with _opened(location) as connection:
            for sql in _SETTINGS:
                connection.exec_driver_sql(sql)
            _check_schema(connection, location)
            yield connection
    except sqlalchemy.exc.DBAPIError as error:
        raise _explained(error, location) from error


def _opened(location: Location) -> Connection:
    """A connection that is closed for good with its end."""
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(location.uri)
        given = {"connect_timeout": str(_CONNECT_S), **_certificates(), **url.query, "charset": "utf8mb4"}
        engine = sqlalchemy.create_engine(url.set(query=given), poolclass=sqlalchemy.NullPool)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise AdvisorError(
            f"{location.shown!r} is no address of a database; one is mysql+pymysql://user@host/name"
        ) from None
    try:
        return engine.connect()
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # a setting that is none, a file that is not there
        raise AdvisorError(f"cannot open {location.shown}: {database.short(error)}") from error


def _certificates() -> dict[str, str]:
    """Those that MLflow is told of by environment variables."""
    return {
        name: path
        for name in ("ssl_ca", "ssl_cert", "ssl_key")
        if (path := os.environ.get(f"MLFLOW_MYSQL_{name.upper()}"))
    }


def query(connection: Connection, sql: str, **values: object) -> Sequence[Any]:
    """The rows of a query with `:name` for its values; a list of values stands in brackets of its own."""
    import sqlalchemy

    lists: list[Any] = [
        sqlalchemy.bindparam(name, expanding=True) for name, value in values.items() if isinstance(value, list)
    ]
    return connection.execute(sqlalchemy.text(sql).bindparams(*lists), values).fetchall()


def _check_schema(connection: Connection, location: Location) -> None:
    found = query(connection, "SELECT version_num FROM alembic_version")
    database.check_version(found[0][0] if found else None, location.shown)


def _explained(error: DBAPIError, location: Location) -> AdvisorError:
    where, said = location.shown, error.orig.args if error.orig is not None else ()
    code = said[0] if said and isinstance(said[0], int) else 0
    if code == _NO_DATABASE or (code == _NO_TABLE and "alembic_version" in str(said)):
        return database.refusal("no store", where)
    if code in (_NO_TABLE, _NO_COLUMN, _NO_INDEX):
        return database.refusal("old schema", where)
    if code in _NO_PRIVILEGE:
        return database.refusal("no privilege", where)
    if code in _UNREACHED:
        return database.refusal("out of reach", where)
    return AdvisorError(f"cannot read {where}: {database.short(said[-1] if said else error.orig)}")


# --- questions ------------------------------------------------------------------------------------------------------------------


class _Database:
    """A `rows.Database`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _of(self, sql: str, ids: Sequence[str], **values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query for runs, `:ids` in it; the id, first in a row, becomes the run's place among `ids`."""
        places = {id: i for i, id in enumerate(ids) if id}
        wanted = list(places)
        for at in range(0, len(wanted), _IDS_AT_ONCE):
            for id, *rest in query(self._connection, sql, ids=wanted[at : at + _IDS_AT_ONCE], **values):
                yield places[id], *rest

    def experiments(self) -> list[Listed]:
        found = query(
            self._connection, "SELECT experiment_id, name, lifecycle_stage FROM experiments ORDER BY experiment_id"
        )
        return database.listed(found)

    def runs(self, experiment: int) -> Sequence[Any]:
        return query(
            self._connection,
            "SELECT run_uuid, name, status, start_time, end_time, artifact_uri, user_id FROM runs "
            "WHERE experiment_id = :id AND lifecycle_stage = 'active' ORDER BY start_time, CAST(run_uuid AS BINARY)",
            id=experiment,
        )

    def execute(self, sql: str, values: tuple[str, ...]) -> Sequence[Any]:
        (key,) = values
        exactly = "`key` = :key AND CAST(CONVERT(`key` USING utf8mb4) AS BINARY) = CAST(:key AS BINARY)"
        return query(self._connection, sql.replace("key = ?", exactly), key=key)

    def experiment_tags(self, experiment: int) -> Sequence[Any]:
        return query(
            self._connection,
            "SELECT `key`, left(value, :length) FROM experiment_tags WHERE experiment_id = :id",
            length=collect.MAX_TEXT,
            id=experiment,
        )

    def params(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        sql = "SELECT p.run_uuid, p.`key`, left(p.value, :length) FROM params p WHERE p.run_uuid IN :ids"
        return self._of(sql, ids, length=collect.MAX_TEXT)

    def tags(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        """Without window functions, which MySQL 5.7 has not: of the few runs with too many tags of their own, one by one."""
        counts = self._of(
            f"SELECT t.run_uuid, count(*) FROM tags t WHERE t.run_uuid IN :ids AND {_OWN} GROUP BY t.run_uuid",  # noqa: S608
            ids,
        )
        many = {place for place, count in counts if count > collect.MAX_TAGS}
        sql = "SELECT t.run_uuid, t.`key`, left(t.value, :length) FROM tags t WHERE t.run_uuid IN :ids AND "
        yield from self._of(
            sql + "(t.`key` LIKE 'advisor.%' OR t.`key` LIKE 'mlflow.source.%' OR t.`key` IN :names)",
            ids,
            length=collect.MAX_TEXT,
            names=list(collect.MLFLOW_TAGS),
        )
        few = [id if place not in many else "" for place, id in enumerate(ids)]  # a run keeps its place, under no id
        yield from self._of(sql + _OWN, few, length=collect.MAX_TEXT)
        first = f" ORDER BY CAST(CONVERT(t.`key` USING utf8mb4) AS BINARY) LIMIT {collect.MAX_TAGS}"
        for place in many:
            for _, key, value in self._of(sql + _OWN + first, [ids[place]], length=collect.MAX_TEXT):
                yield place, key, value

    def latest(self, ids: list[str]) -> Iterator[Any]:
        return self._of(
            "SELECT m.run_uuid, m.`key`, coalesce(m.timestamp, 0), m.step, m.value FROM latest_metrics m "
            "WHERE m.run_uuid IN :ids",
            ids,
        )

    def added(self, ids: list[str]) -> Iterator[tuple[Any, ...]]:
        """The numbers of points."""
        sql = "SELECT m.run_uuid, count(*) FROM metrics m WHERE m.run_uuid IN :ids GROUP BY m.run_uuid"
        return self._of(sql, ids)

    def points(self, metrics: Mapping[str, int], ids: list[str]) -> database.Block:
        return _points(self._connection, self._of(_CURVES, ids, names=list(metrics), nan=database.NAN), metrics, ids)


# --- points ---------------------------------------------------------------------------------------------------------------------

_VALUE = "CASE WHEN m.is_nan OR m.value IS NULL THEN :nan ELSE m.value END"
# The order of the join and the index are given: left to itself the database may look through all runs for each curve.
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


def _points(
    connection: Connection, curves: Iterator[tuple[Any, ...]], metrics: Mapping[str, int], ids: list[str]
) -> database.Block:
    """The points of curves (run, metric, number of points, text); of one that came cut, longer than a packet, row by row."""
    groups, counts, texts, cut = [], [], [], []
    for place, key, count, text in curves:
        if key not in metrics:
            continue
        group = place * len(metrics) + metrics[key]
        if text is not None and text.endswith("\n") and text.count("\n") == count:
            groups.append(group)
            counts.append(count)
            texts.append(text)
        else:
            cut.append((group, ids[place], key))
    block = _parsed("".join(texts).encode(), sum(counts))
    block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
    block = np.concatenate([block, *(_row_by_row(connection, *curve) for curve in cut)])
    block["value"][block["value"] == database.NAN] = np.nan
    return block


def _parsed(lines: bytes, count: int) -> database.Block:
    """Points from lines of step, value and time; their group is left open."""
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
    with connection.execute(sql, {"id": id, "key": key, "nan": database.NAN}) as found:
        return np.fromiter(((group, *row) for row in found), dtype=database.POINT)
