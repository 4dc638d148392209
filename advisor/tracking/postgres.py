"""Reads an experiment straight from MLflow's PostgreSQL database: a few set-based, read-only queries of one snapshot.

Points come by COPY in its binary format, each curve as arrays, which NumPy takes as they are: a row a point would cost Python
most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from advisor.contract.redact import redact
from advisor.errors import AdvisorError
from advisor.space import BoolArray
from advisor.tracking import cache, collect, rows
from advisor.tracking.location import Location
from advisor.tracking.lookup import Listed, choose
from advisor.tracking.runs import Experiment, Run
from advisor.tracking.sidecar import prefer

if TYPE_CHECKING:
    import psycopg

    Column = np.ndarray[Any, Any]
    Connection = psycopg.Connection[tuple[Any, ...]]

_CONNECT_S = 5
_POINTS_AT_ONCE = 2_000_000
"""More than of SQLite: reading keeps no writer waiting here, and each query may look through all points of the store."""
_WORTH_KEEPING = 250_000
"""Points that a database takes longer to give than a file to write."""
_MEMORY = "SET LOCAL work_mem = '256MB'"
"""Of the server's, for this transaction: enough to group a block of points without its disk."""
_HEADER = 19
"""Bytes before the first row of a binary COPY."""
_ARRAY_HEADER = 20
"""Bytes before the elements of an array of one dimension."""
_UNREACHED = ("08", "28", "57P0")
"""Starts of the codes of errors of the connection: broken, refused, ended by a server that stops. So are those without one."""
_WANTED_RUNS = "wanted_run w"
"""In a query: the ids of the runs, with their places from 1 on. A read-only connection makes no temporary table."""
_AS_GIVEN = "unnest(%s::text[]) WITH ORDINALITY AS w(id, i)"


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
        return _listed(connection)


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
        chosen = choose(experiment, _listed(connection), location)
        found = _query(
            connection,
            "SELECT run_uuid, name, status, start_time, end_time, artifact_uri, user_id FROM runs WHERE experiment_id = %s "
            "AND lifecycle_stage = 'active' ORDER BY start_time NULLS FIRST, run_uuid COLLATE \"C\"",
            int(chosen.id),
        )
        if filter:
            from advisor.tracking.filtering import matching

            found = matching(lambda sql, key: _query(connection, sql.replace("?", "%s"), *key), found, filter)
        ids = [row[0] for row in found]
        runs = _runs(connection, found, ids)
        latest = _latest(connection, ids)
        sources = rows.sources(runs, [row[5] for row in found], latest)
        kept, collector = cache.of_experiment(location, chosen.id), collect.Collector()
        keys = rows.keys(runs, sources, latest, dict(_numbers(connection, ids)), system_metrics)
        known = kept.fill(keys, collector)
        _read_points(connection, ids, known, system_metrics, collector, on_progress)
        full, warnings, unusable = rows.read_sidecars(sources, known, on_progress)
        prefer(full, collector)
        tags = _query(
            connection,
            "SELECT key, left(value, %s) FROM experiment_tags WHERE experiment_id = %s",
            collect.MAX_TEXT,
            int(chosen.id),
        )
        return Experiment(
            name=chosen.name,
            runs=runs,
            points=kept.points(collector, worth=_WORTH_KEEPING, but=unusable),
            tags=collect.keep_tags(dict(tags)),
            warnings=warnings,
        )


# --- connection -----------------------------------------------------------------------------------------------------------------


@contextmanager
def connect(location: Location) -> Iterator[Connection]:
    """A connection that sees one state of the database and can write nothing; its errors come out as AdvisorError."""
    import psycopg
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(location.uri)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise AdvisorError(
            f"{location.shown!r} is no address of a database; one is postgresql://user@host/name"
        ) from None
    given = {**url.query, **url.translate_connect_args(username="user", database="dbname")}
    try:
        with psycopg.connect(**cast("dict[str, Any]", {"connect_timeout": _CONNECT_S, **given})) as connection:
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute(_MEMORY)
            _check_schema(connection, location)
            yield connection
    except psycopg.Error as error:
        raise _explained(error, location) from error


def _query(connection: Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    return connection.execute(_written(sql), values).fetchall()


def _written(sql: str) -> str:
    return sql.replace(_WANTED_RUNS, _AS_GIVEN)


def _check_schema(connection: Connection, location: Location) -> None:
    found = _query(connection, "SELECT version_num FROM alembic_version")
    known = rows.known_versions()
    if known and found and found[0][0] not in known:
        raise AdvisorError(
            f"{location.shown} was written by a newer MLflow than the one installed here; run: pip install --upgrade mlflow-skinny"
        )


def _explained(error: psycopg.Error, location: Location) -> AdvisorError:
    import psycopg

    where = location.shown
    if isinstance(error, psycopg.errors.UndefinedTable) and "alembic_version" in str(error):
        return AdvisorError(f"{where} holds no MLflow store; pass the database that your tracking server uses")
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return AdvisorError(f"{where} has the schema of an older MLflow; back it up and run: mlflow db upgrade")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return AdvisorError(f"{where} refuses to be read; the user needs SELECT on the tables of MLflow")
    if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_UNREACHED):
        return AdvisorError(f"cannot reach {where}; is the database running, and are user and password right?")
    return AdvisorError(f"cannot read {where}: {' '.join(redact(str(error)).split())[:300]}")


# --- experiment and runs --------------------------------------------------------------------------------------------------------


def _listed(connection: Connection) -> list[Listed]:
    found = _query(connection, "SELECT experiment_id, name, lifecycle_stage FROM experiments ORDER BY experiment_id")
    return [Listed(id=str(id), name=name, deleted=stage == "deleted") for id, name, stage in found]


def _runs(connection: Connection, found: Sequence[tuple[Any, ...]], ids: list[str]) -> tuple[Run, ...]:
    params = _query(
        connection,
        "SELECT w.i - 1, p.key, left(p.value, %s) FROM wanted_run w JOIN params p ON p.run_uuid = w.id",
        collect.MAX_TEXT,
        ids,
    )
    params_of, tags_of = collect.text_maps(params, len(ids)), collect.text_maps(_tags(connection, ids), len(ids))
    return tuple(
        collect.make_run(
            id=id, name=name, status=status, start_ms=start, end_ms=end, params=params_of[i], tags=tags_of[i]
        )
        for i, (id, name, status, start, end, *_) in enumerate(found)
    )


def _tags(connection: Connection, ids: list[str]) -> list[tuple[Any, ...]]:
    """The tags worth keeping; `collect.keep_tags` decides, this only keeps millions of others inside the database."""
    essential = _query(
        connection,
        "SELECT w.i - 1, t.key, left(t.value, %s) FROM wanted_run w JOIN tags t ON t.run_uuid = w.id "
        "WHERE t.key LIKE 'advisor.%%' OR t.key LIKE 'mlflow.source.%%' OR t.key = ANY(%s)",
        collect.MAX_TEXT,
        ids,
        list(collect.MLFLOW_TAGS),
    )
    others = _query(
        connection,
        "SELECT i, key, value FROM (SELECT w.i - 1 AS i, t.key AS key, left(t.value, %s) AS value, "
        'row_number() OVER (PARTITION BY w.i ORDER BY t.key COLLATE "C") AS place FROM wanted_run w '
        "JOIN tags t ON t.run_uuid = w.id WHERE t.key NOT LIKE 'mlflow.%%' AND t.key NOT LIKE 'advisor.%%') AS own "
        "WHERE place <= %s",
        collect.MAX_TEXT,
        ids,
        collect.MAX_TAGS,
    )
    return essential + others


# --- points ---------------------------------------------------------------------------------------------------------------------


def _latest(connection: Connection, ids: list[str]) -> list[rows.Latest]:
    """The last point of each curve."""
    return _query(
        connection,
        "SELECT w.i - 1, m.key, coalesce(m.timestamp, 0), m.step, m.value FROM wanted_run w "
        "JOIN latest_metrics m ON m.run_uuid = w.id",
        ids,
    )


def _numbers(connection: Connection, ids: list[str]) -> list[tuple[Any, ...]]:
    """(run, how many points it has)."""
    return _query(
        connection,
        "SELECT w.i - 1, count(*) FROM wanted_run w JOIN metrics m ON m.run_uuid = w.id GROUP BY 1",
        ids,
    )


def _read_points(
    connection: Connection,
    ids: list[str],
    known: BoolArray,
    system_metrics: bool,
    collector: collect.Collector,
    on_progress: Callable[[int, int], None],
) -> None:
    """Add the points of the runs that are not known to the collector."""
    found = _query(
        connection,
        "SELECT DISTINCT m.key FROM wanted_run w JOIN latest_metrics m ON m.run_uuid = w.id",
        [id for id, kept in zip(ids, known, strict=True) if not kept],
    )
    keys = sorted(key for (key,) in found)
    metrics = [key for key in keys if system_metrics or not key.startswith(collect.SYSTEM_PREFIX)]
    # A known run keeps its place, under no id.
    unknown = ["" if kept else id for id, kept in zip(ids, known, strict=True)]
    read = partial(_block, connection, metrics, unknown)
    rows.gather(len(ids), metrics, read, collector, on_progress, points_at_once=_POINTS_AT_ONCE)


def _block(connection: Connection, metrics: list[str], ids: list[str], start: int, stop: int) -> rows.Block:
    """The points of the runs from `start` on, up to `stop`."""
    query = """
        COPY (
            SELECT (w.i - 1 + %s::bigint) * %s::bigint + k.i - 1, array_agg(m.step::bigint),
                   array_agg(CASE WHEN m.is_nan OR m.value IS NULL THEN 'NaN'::float8 ELSE m.value::float8 END),
                   array_agg(coalesce(m.timestamp, 0)::bigint)
            FROM wanted_run w JOIN metrics m ON m.run_uuid = w.id
            JOIN unnest(%s::text[]) WITH ORDINALITY AS k(name, i) ON k.name = m.key
            GROUP BY 1
        ) TO STDOUT (FORMAT BINARY)
    """
    given = (start, len(metrics), ids[start:stop], metrics)
    with connection.cursor() as cursor, cursor.copy(_written(query), given) as copied:
        data = b"".join(copied)
    curves = list(_curves(data))
    block = np.empty(sum(len(steps) for _, steps, _, _ in curves), dtype=rows.POINT)
    at = 0
    for group, *columns in curves:
        part = block[at : at + len(columns[0])]
        part["group"], part["step"], part["value"], part["time"] = group, *columns
        at += len(part)
    return block


def _curves(data: bytes) -> Iterator[tuple[int, Column, Column, Column]]:
    """(group, steps, values, times) of each row: its number of fields, then each field's length and bytes, all big-endian."""
    at = _HEADER
    while int.from_bytes(data[at : at + 2], signed=True) >= 0:  # -1 ends the data
        group = int.from_bytes(data[at + 6 : at + 14], signed=True)
        at += 14
        columns = []
        for kind in (">i8", ">f8", ">i8"):
            size = int.from_bytes(data[at : at + 4])
            element = np.dtype([("size", ">i4"), ("value", kind)])
            count = (size - _ARRAY_HEADER) // element.itemsize
            columns.append(np.frombuffer(data, element, count, at + 4 + _ARRAY_HEADER)["value"])
            at += 4 + size
        steps, values, times = columns
        yield group, steps, values, times
