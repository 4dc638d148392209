"""Reads an experiment straight from MLflow's PostgreSQL database: a few set-based, read-only queries of one snapshot.

Points come by COPY in its binary format, each curve as packed numbers, which NumPy takes as they are: a row a point would cost
Python most of the time. What is left is the server's work, which it does for some connections at once.
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
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import database
from advisor.tracking.stores.location import Location
from advisor.tracking.stores.lookup import Listed

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECT_S = 5
_POINTS_AT_ONCE = 1_000_000
"""More than of SQLite: reading keeps no writer waiting here."""
_SETTINGS = "SET LOCAL work_mem = '256MB'; SET LOCAL jit = off"
"""Of the server's, for this transaction: memory enough to group a run's points without its disk; no compiling of what is short."""
_ALONE = 64
"""Fewer runs than these are read sooner than another connection is made."""
_MOST_HELPERS = 3
"""Connections beside the first."""
_UNREACHED = ("08", "28", "57P0")
"""Starts of the codes of errors of the connection: broken, refused, ended by a server that stops. So are those without one."""
_WANTED_RUNS = "wanted_run w"
"""In a query: the ids of the runs, with their places from 1 on. A read-only connection makes no temporary table."""
_AS_GIVEN = "unnest(%s::text[]) WITH ORDINALITY AS w(id, i)"

T = TypeVar("T")
Curve = tuple[int, bytes, bytes, bytes]
"""Its group, and its steps, values and times as big-endian numbers of 8 bytes."""


def is_possible(location: Location) -> bool:
    """Whether the store is a PostgreSQL database and its driver is installed; MLflow's client reads it otherwise, slowly."""
    if location.kind != "database" or not location.uri.lower().startswith("postgres"):
        return False
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return False
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
    with connect(location) as connection, ExitStack() as helpers:
        return database.read(
            _Database(connection, lambda: _helpers(connection, location, helpers)),
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
    import psycopg

    try:
        with _opened(location) as connection:
            _check_schema(connection, location)
            yield connection
    except psycopg.Error as error:
        raise _explained(error, location) from error


def _opened(location: Location) -> Connection:
    """A connection in a transaction that can write nothing."""
    import psycopg
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(location.uri)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise AdvisorError(
            f"{location.shown!r} is no address of a database; one is postgresql://user@host/name"
        ) from None
    given = {**url.query, **url.translate_connect_args(username="user", database="dbname")}
    connection = psycopg.connect(**cast("dict[str, Any]", {"connect_timeout": _CONNECT_S, **given}))
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute(_SETTINGS)
    return connection


def _helpers(connection: Connection, location: Location, open_until: ExitStack) -> list[Connection]:
    """Connections that see the same state, as many as the server lets work on one query; fewer where it refuses them.

    Services that only speak as PostgreSQL does may not know of snapshots.
    """
    import psycopg

    sql = "SELECT has_function_privilege(to_regprocedure('pg_export_snapshot()'), 'EXECUTE')"
    helpers: list[Connection] = []
    with suppress(psycopg.Error):
        with connection.transaction():  # one within ours, which is given up alone; a snapshot cannot come from it
            ((granted,),) = _query(connection, sql)
        if not granted:
            return []
        sql = "SELECT pg_export_snapshot(), current_setting('max_parallel_workers_per_gather')::int"
        ((snapshot, workers),) = _query(connection, sql)
        for _ in range(min(workers, _MOST_HELPERS)):
            helper = open_until.enter_context(_opened(location))
            helper.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            helpers.append(helper)
    return helpers


def _query(connection: Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return connection.execute(_written(sql), values).fetchall()


def _written(sql: str) -> str:
    return sql.replace(_WANTED_RUNS, _AS_GIVEN)


def _check_schema(connection: Connection, location: Location) -> None:
    found = _query(connection, "SELECT version_num FROM alembic_version")
    database.check_version(found[0][0] if found else None, location.shown)


def _explained(error: psycopg.Error, location: Location) -> AdvisorError:
    import psycopg

    where = location.shown
    if isinstance(error, psycopg.errors.UndefinedTable) and "alembic_version" in str(error):
        return database.refusal("no store", where)
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return database.refusal("old schema", where)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return database.refusal("no privilege", where)
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_UNREACHED):
        return database.refusal("out of reach", where)
    return AdvisorError(f"cannot read {where}: {database.short(error)}")


# --- questions ------------------------------------------------------------------------------------------------------------------


class _Database:
    """A `rows.Database`."""

    def __init__(self, connection: Connection, helpers: Callable[[], list[Connection]] = list) -> None:
        self._connection, self._helpers = connection, helpers

    @cached_property
    def _connections(self) -> list[Connection]:
        return [self._connection, *self._helpers()]

    def _query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return _query(self._connection, sql, *values)

    def _divided(self, read: Callable[[Connection, list[str]], Iterable[T]], ids: list[str]) -> list[T]:
        """What `read` gives of the runs, in any order: where they are many, each connection reads its share at the same time."""
        if len(ids) < _ALONE:
            return list(read(self._connection, ids))
        many = len(self._connections)
        # A run that another connection reads keeps its place, under no id.
        shares = [[id if i % many == k else "" for i, id in enumerate(ids)] for k in range(many)]
        with ThreadPoolExecutor(many) as pool:
            try:
                return [row for part in pool.map(read, self._connections, shares) for row in part]
            except BaseException:  # also where the user interrupts: nobody waits for what is not wanted any more
                for connection in self._connections:
                    connection.cancel()
                raise

    def experiments(self) -> list[Listed]:
        return database.listed(
            self._query("SELECT experiment_id, name, lifecycle_stage FROM experiments ORDER BY experiment_id")
        )

    def runs(self, experiment: int) -> list[tuple[Any, ...]]:
        return self._query(
            "SELECT run_uuid, name, status, start_time, end_time, artifact_uri, user_id FROM runs WHERE experiment_id = %s "
            "AND lifecycle_stage = 'active' ORDER BY start_time NULLS FIRST, run_uuid COLLATE \"C\"",
            experiment,
        )

    def execute(self, sql: str, values: tuple[str, ...]) -> list[tuple[Any, ...]]:
        return self._query(sql.replace("?", "%s"), *values)

    def experiment_tags(self, experiment: int) -> list[tuple[Any, ...]]:
        return self._query(
            "SELECT key, left(value, %s) FROM experiment_tags WHERE experiment_id = %s", collect.MAX_TEXT, experiment
        )

    def params(self, ids: list[str]) -> list[tuple[Any, ...]]:
        return self._query(
            "SELECT w.i - 1, p.key, left(p.value, %s) FROM wanted_run w JOIN params p ON p.run_uuid = w.id",
            collect.MAX_TEXT,
            ids,
        )

    def tags(self, ids: list[str]) -> list[tuple[Any, ...]]:
        essential = self._query(
            "SELECT w.i - 1, t.key, left(t.value, %s) FROM wanted_run w JOIN tags t ON t.run_uuid = w.id "
            "WHERE t.key LIKE 'advisor.%%' OR t.key LIKE 'mlflow.source.%%' OR t.key = ANY(%s)",
            collect.MAX_TEXT,
            ids,
            list(collect.MLFLOW_TAGS),
        )
        others = self._query(
            "SELECT i, key, value FROM (SELECT w.i - 1 AS i, t.key AS key, left(t.value, %s) AS value, "
            'row_number() OVER (PARTITION BY w.i ORDER BY t.key COLLATE "C") AS place FROM wanted_run w '
            "JOIN tags t ON t.run_uuid = w.id WHERE t.key NOT LIKE 'mlflow.%%' AND t.key NOT LIKE 'advisor.%%') AS own "
            "WHERE place <= %s",
            collect.MAX_TEXT,
            ids,
            collect.MAX_TAGS,
        )
        return essential + others

    def latest(self, ids: list[str]) -> list[database.Latest]:
        return self._query(
            "SELECT w.i - 1, m.key, coalesce(m.timestamp, 0), m.step, m.value FROM wanted_run w "
            "JOIN latest_metrics m ON m.run_uuid = w.id",
            ids,
        )

    def added(self, ids: list[str]) -> list[tuple[Any, ...]]:
        """The numbers of points."""
        return self._divided(lambda connection, share: _query(connection, _COUNTS, share), ids)

    def points(self, metrics: Mapping[str, int], ids: list[str]) -> database.Block:
        ((system,),) = self._query(
            "SELECT EXISTS (SELECT FROM wanted_run w JOIN latest_metrics m ON m.run_uuid = w.id "
            "WHERE starts_with(m.key, %s))",
            ids,
            collect.SYSTEM_PREFIX,
        )
        asked = any(name.startswith(collect.SYSTEM_PREFIX) for name in metrics)
        query = _CURVES.format(but=_BUT_SYSTEM if system and not asked else "")
        return _block(self._divided(lambda connection, share: _curves(connection, query, metrics, share), ids))


# --- points ---------------------------------------------------------------------------------------------------------------------

# In a query of its own for each run its points are found by their index, whatever the server knows of the table.
_COUNTS = """
    SELECT w.i - 1, c.points FROM wanted_run w CROSS JOIN LATERAL (
        SELECT count(*) AS points FROM metrics m WHERE m.run_uuid = w.id HAVING count(*) > 0
    ) AS c
"""
# No column is ever NULL: all are of the table's primary key.
_CURVES = """
    SELECT w.i - 1, c.* FROM wanted_run w CROSS JOIN LATERAL (
        SELECT m.key, string_agg(int8send(m.step::int8), ''),
               string_agg(float8send(CASE WHEN m.is_nan THEN 'NaN' ELSE m.value::float8 END), ''),
               string_agg(int8send(m.timestamp::int8), '')
        FROM metrics m WHERE m.run_uuid = w.id {but} GROUP BY m.key
    ) AS c
"""
_BUT_SYSTEM = f"AND NOT starts_with(m.key, '{collect.SYSTEM_PREFIX}')"
"""Asked of each point it costs a fifth of the server's time."""


def _curves(connection: Connection, query: str, metrics: Mapping[str, int], ids: list[str]) -> list[Curve]:
    copy = f"COPY ({_written(query)}) TO STDOUT (FORMAT BINARY)"
    with connection.cursor() as cursor, cursor.copy(copy, (ids,)) as copied:
        copied.set_types(("int8", "text", "bytea", "bytea", "bytea"))
        return [
            (place * len(metrics) + metrics[key], *columns) for place, key, *columns in copied.rows() if key in metrics
        ]


def _block(curves: list[Curve]) -> database.Block:
    """Their points, run by run."""
    if not curves:
        return np.empty(0, dtype=database.POINT)
    groups, *columns = zip(*sorted(curves), strict=True)
    counts = [len(steps) // 8 for steps in columns[0]]
    block = np.empty(sum(counts), dtype=database.POINT)
    block["group"] = np.repeat(np.array(groups, dtype=np.int64), counts)
    for name, kind, column in zip(("step", "value", "time"), (">i8", ">f8", ">i8"), columns, strict=True):
        block[name] = np.frombuffer(b"".join(column), kind)
    return block
