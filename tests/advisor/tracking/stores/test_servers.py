"""Reading the databases of real PostgreSQL and MariaDB servers."""

from __future__ import annotations

import importlib.util
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import START_S, refused, same, same_by_sql_and_through_the_client, through_client

from advisor.model.errors import AdvisorError, UnansweredError
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import database, servers
from advisor.tracking.stores.database import RunDatabase
from advisor.tracking.stores.location import StoreLocation, parse_tracking_uri
from advisor.tracking.stores.reading import read_experiment

pytestmark = pytest.mark.xdist_group("tracking server")  # they share servers


def test_postgresql_gives_the_same_by_sql_and_through_the_client(odd_database: Path, odd_postgres: str) -> None:
    pytest.importorskip("psycopg")
    assert servers.can_read(parse_tracking_uri(odd_postgres))
    same_by_sql_and_through_the_client(odd_postgres, odd_database)


def query_fails(uri: str, sql: str, message: str) -> None:
    with pytest.raises(AdvisorError, match=message) as caught, servers.connect(parse_tracking_uri(uri)) as opened:
        opened.query(sql)
    assert "\n" not in str(caught.value)


def test_a_postgresql_that_cannot_be_read_is_one_line(odd_postgres: str) -> None:
    server, _, _ = odd_postgres.rpartition("/")
    assert "pa55word" not in refused("holds no MLflow store", "odd", tracking_uri=f"{server}/postgres")
    refused("cannot reach", "odd", tracking_uri=f"{server}/no_such_database")
    refused("has no experiment|no experiment", "none", tracking_uri=odd_postgres)
    query_fails(odd_postgres, "DELETE FROM metrics", "read-only")
    for sql, said in (
        ("SET LOCAL statement_timeout = 20; SELECT pg_sleep(20)", "^cannot read .*: canceling statement due to"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "^cannot reach .* is the database running"),
    ):
        query_fails(odd_postgres, sql, said)


def test_a_connection_to_postgresql_that_is_dropped_in_mid_read_is_one_line(
    odd_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr(database, "_RUNS_IN_FIRST_BLOCK", 1)

    def drop(done: int, of: int) -> None:
        if done < of:
            with psycopg.connect(odd_postgres.replace("+psycopg2", "")) as admin:
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    refused("cannot reach .*; is the database running", "odd", tracking_uri=odd_postgres, on_progress=drop)
    assert len(read_experiment("odd", tracking_uri=odd_postgres).runs) == 4


@pytest.fixture
def shared(odd_postgres: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The driver's address of a database that several connections read, however few runs it has."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr(servers, "_MIN_RUNS_PER_CONNECTION", 1)
    return odd_postgres.replace("+psycopg2", "")


def test_connections_to_postgresql_share_the_reading_and_see_one_state(shared: str) -> None:
    import psycopg

    same(read_experiment("odd", tracking_uri=shared), through_client(shared.replace("postgresql:", "postgresql+psycopg2:")))
    count = "SELECT count(*) FROM experiment_tags"
    with psycopg.connect(shared, autocommit=True) as writer, servers.connect(parse_tracking_uri(shared)) as opened:
        before = opened.query(count)
        writer.execute("INSERT INTO experiment_tags (key, value, experiment_id) VALUES ('late', '', 1)")
        try:
            counts = opened.read_in_shares(range(9), lambda connection, some: (connection.query(count), list(some)))
            assert counts == [(before, [0, 3, 6]), (before, [1, 4, 7]), (before, [2, 5, 8])]
            assert writer.execute(count).fetchall() != before
            assert opened.query(count) == before
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                opened.read_in_shares(
                    range(9), lambda connection, some: some[0] == 1 and connection.query("DELETE FROM metrics")
                )
        finally:
            writer.execute("DELETE FROM experiment_tags WHERE key = 'late'")


def test_a_postgresql_that_grants_one_connection_is_read_by_one(shared: str) -> None:
    import psycopg

    with psycopg.connect(shared) as admin:
        admin.execute("CREATE ROLE guest LOGIN CONNECTION LIMIT 1")
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")  # which is enough
        admin.execute("ALTER ROLE guest SET default_transaction_read_only = on")
    guest = shared.replace("mlflow:pa55word", "guest")
    same(read_experiment("odd", tracking_uri=guest), read_experiment("odd", tracking_uri=shared))
    with servers.connect(parse_tracking_uri(guest)) as opened:
        assert len(opened.read_in_shares(range(9), lambda _, some: len(some))) == 1


def test_a_postgresql_without_snapshots_is_read_by_one_connection(shared: str) -> None:
    import psycopg

    expected = read_experiment("odd", tracking_uri=shared)
    with psycopg.connect(shared, autocommit=True) as admin:
        admin.execute("CREATE ROLE stranger LOGIN")
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO stranger")
        admin.execute("REVOKE EXECUTE ON FUNCTION pg_export_snapshot() FROM PUBLIC")
        try:
            same(read_experiment("odd", tracking_uri=shared.replace("mlflow:pa55word", "stranger")), expected)
        finally:
            admin.execute("GRANT EXECUTE ON FUNCTION pg_export_snapshot() TO PUBLIC")


def test_nobody_waits_for_connections_whose_work_is_not_wanted_any_more(shared: str) -> None:
    def read(connection: RunDatabase, some: Sequence[int]) -> None:
        if some[0] == 0:
            time.sleep(0.3)
            raise KeyboardInterrupt
        connection.query("SELECT pg_sleep(60)")

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), servers.connect(parse_tracking_uri(shared)) as opened:
        opened.read_in_shares(range(9), read)
    assert time.monotonic() - began < 30


def test_a_postgresql_that_never_answers_is_out_of_reach() -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://mlflow:pa55word@127.0.0.1:{silent.getsockname()[1]}/name?connect_timeout=2"
        with pytest.raises(UnansweredError, match=r"cannot reach .* is the database running") as caught:
            read_experiment("odd", tracking_uri=address)
    assert "pa55word" not in str(caught.value)


def test_errors_of_mysql_drivers_are_explained_without_their_codes() -> None:
    errors = pytest.importorskip("pymysql").err
    lost = [errors.InterfaceError(), errors.InterfaceError(""), errors.InternalError("Packet sequence number wrong")]
    for error in [*lost, errors.InterfaceError(0, ""), errors.OperationalError(2013, "Lost connection")]:
        said = servers.explain_error(error, "the store", servers.MysqlDatabase)
        assert isinstance(said, UnansweredError), error
    said = servers.explain_error(errors.OperationalError(1115, "Unknown character set"), "the store", servers.MysqlDatabase)
    assert (type(said), str(said)) == (AdvisorError, "cannot read the store: Unknown character set")


def test_mariadb_gives_the_same_by_sql_and_through_the_client(odd_database: Path, odd_mariadb: str) -> None:
    assert servers.can_read(parse_tracking_uri(odd_mariadb))
    by_sql = same_by_sql_and_through_the_client(odd_mariadb, odd_database)
    if importlib.util.find_spec("MySQLdb") is not None:
        same(by_sql, read_experiment("odd", tracking_uri=odd_mariadb.replace("+pymysql", "")))


def test_a_mysql_without_a_known_driver_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pymysql")
    assert servers.can_read(StoreLocation("database", "mysql+pymysql://host/name"))
    assert not servers.can_read(StoreLocation("database", "mysql+aiomysql://host/name"))
    assert not servers.can_read(StoreLocation("database", "mssql://host/name"))
    refused("is not the address of a database", "odd", tracking_uri="mysql+nonsense://mlflow:pa55word@host/name")
    monkeypatch.setitem(sys.modules, "pymysql", None)
    assert not servers.can_read(StoreLocation("database", "mysql+pymysql://host/name"))


def test_reading_mariadb_sees_one_state(odd_mariadb: str) -> None:
    count = "SELECT count(*) FROM tags"
    with servers.connect(parse_tracking_uri(odd_mariadb)) as opened, mariadb(odd_mariadb) as execute:
        execute("INSERT INTO tags SELECT CONCAT('new ', UUID()), 'x', run_uuid FROM runs LIMIT 1")
        before = opened.query(count)[0][0]
        execute("DELETE FROM tags WHERE `key` LIKE 'new %%'")
        assert opened.query(count)[0][0] == before
    with servers.connect(parse_tracking_uri(odd_mariadb)) as opened:
        assert opened.query(count)[0][0] == before


def test_a_mariadb_that_cannot_be_read_is_one_line(odd_mariadb: str) -> None:
    server, _, _ = odd_mariadb.rpartition("/")
    said = [
        refused("holds no MLflow store", "odd", tracking_uri=f"{server}/other"),
        refused("holds no MLflow store", "odd", tracking_uri=server),
        refused("cannot reach", "odd", tracking_uri=f"{server}/no_such_database"),
        refused("cannot reach", "odd", tracking_uri=odd_mariadb.replace("pa55word", "pa55word2")),
        refused("cannot reach", "odd", tracking_uri="mysql+pymysql://mlflow:pa55word@127.0.0.1:9/mlflow"),
        refused("cannot open .*nonsense", "odd", tracking_uri=f"{odd_mariadb}?nonsense=1&password=pa55word"),
        refused("cannot open .*No such file", "odd", tracking_uri=f"{odd_mariadb}?ssl_ca=/no/such/file"),
        refused(
            "is not the address of a database", "odd", tracking_uri="mysql+pymysql://mlflow:pa55word@127.0.0.1:port/mlflow"
        ),
        refused("has no experiment|no experiment", "none", tracking_uri=odd_mariadb),
    ]
    assert "pa55word" not in " ".join(said)
    for sql, message in (
        ("DELETE FROM metrics", "^cannot read .*READ ONLY"),
        ("CREATE TABLE t (i int)", "^cannot read .*READ ONLY"),
        ("SET STATEMENT max_statement_time = 0.02 FOR SELECT sleep(20)", "^cannot read .*max_statement_time"),
        ("KILL CONNECTION_ID()", "^cannot (reach|read) "),
    ):
        query_fails(odd_mariadb, sql, message)
    with pytest.raises(AdvisorError, match="READ ONLY"), servers.connect(parse_tracking_uri(odd_mariadb)) as opened:
        [opened.query(sql) for sql in ("COMMIT", "DELETE FROM metrics")]


def test_the_right_to_select_is_enough_in_mariadb(odd_mariadb: str) -> None:
    by_root = read_experiment("odd", tracking_uri=odd_mariadb)
    reader = odd_mariadb.replace("mlflow:pa55word", "reader:pa55word")
    with mariadb(odd_mariadb) as execute:
        execute("CREATE USER IF NOT EXISTS reader@'%%' IDENTIFIED BY 'pa55word'")
        execute("GRANT SELECT ON mlflow.alembic_version TO reader@'%%'")
        assert "pa55word" not in refused("needs SELECT on the tables", "odd", tracking_uri=reader)
        execute("GRANT SELECT ON mlflow.* TO reader@'%%'")
    same(read_experiment("odd", tracking_uri=reader), by_root)


def test_a_mariadb_of_another_mlflow_is_refused(odd_mariadb: str) -> None:
    with mariadb(odd_mariadb) as execute:
        try:
            execute("UPDATE alembic_version SET version_num = CONCAT('x', version_num)")
            refused("written by a newer MLflow", "odd", tracking_uri=odd_mariadb)
        finally:
            execute("UPDATE alembic_version SET version_num = SUBSTR(version_num, 2)")
        try:
            execute("RENAME TABLE latest_metrics TO away")
            refused("schema of an older MLflow", "odd", tracking_uri=odd_mariadb)
        finally:
            execute("RENAME TABLE away TO latest_metrics")


@contextmanager
def mariadb(uri: str) -> Iterator[Callable[..., object]]:
    """Runs statements in MariaDB, each for good."""
    import sqlalchemy

    engine = sqlalchemy.create_engine(uri, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        yield lambda sql, values=None: connection.exec_driver_sql(sql, values or ())


def _log_to_mariadb(uri: str, curves: dict[str, tuple[Any, Any, Any]]) -> None:
    """A run for each metric of the experiment `bits`, made anew: its steps, values and times."""
    from mlflow import MlflowClient

    mlflow = MlflowClient(uri)
    id = mlflow.create_experiment(f"bits {time.time()}")
    with mariadb(uri) as execute:
        execute("UPDATE experiments SET name = CONCAT('old ', experiment_id) WHERE name = 'bits'")
        execute("UPDATE experiments SET name = 'bits' WHERE experiment_id = %s", (int(id),))
        for key, columns in curves.items():
            run = mlflow.create_run(id, run_name=key.strip()).info.run_id
            sql = "INSERT INTO {} (run_uuid, `key`, step, value, timestamp, is_nan) VALUES (%s, %s, %s, %s, %s, %s)"
            points = [
                (run, key, int(s), 0.0 if math.isnan(v) else float(v), int(t), math.isnan(v))
                for s, v, t in zip(*columns, strict=True)
            ]
            execute(sql.format("metrics"), points)
            execute(sql.format("latest_metrics"), points[-1])


def _bits(experiment: Experiment, metric: str) -> tuple[list[int], list[int], list[float]]:
    points = experiment.points[metric]
    order = np.argsort(points.steps)
    return points.steps[order].tolist(), points.values[order].view(np.int64).tolist(), points.times[order].tolist()


def test_numbers_come_out_of_mariadb_bit_for_bit(odd_mariadb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0).integers(-(2**63), 2**63, 3000).view(np.float64)
    random = random[np.isfinite(random) & (np.abs(random) < 1.7e308)]
    special = [0.1, 0.1 + 0.2, math.pi, 5e-324, -5e-324, 2.2250738585072014e-308, -2.2250738585072011e-308, 1e308]
    special += [-1.2345678901234567e-300, 1e22, 1e23, 123456789012345678.0, 2.0**53 + 2, 1 / 3, 1e-5, math.nan]
    values = np.concatenate([special, random])
    steps = np.concatenate([[-(2**63), 2**63 - 1, 2**53 + 1], np.arange(len(values) - 3)])
    times = 2**53 + 1 + 2 * np.arange(len(values))
    _log_to_mariadb(odd_mariadb, {"x": (steps, values, times)})
    found = read_experiment("bits", tracking_uri=odd_mariadb)
    order = np.argsort(steps)
    expected = steps[order].tolist(), values[order].view(np.int64).tolist(), (times[order] / 1000.0).tolist()
    assert _bits(found, "x") == expected

    # The same of a curve that does not fit into one text, which comes cut and is read row by row.
    settings = ("SET SESSION group_concat_max_len = 65536", *servers._MYSQL_SESSION_SETTINGS[1:])
    monkeypatch.setattr(servers, "_MYSQL_SESSION_SETTINGS", settings)
    assert _bits(read_experiment("bits", tracking_uri=odd_mariadb), "x") == expected


@pytest.mark.parametrize("short", range(-3, 4))
def test_a_curve_cut_anywhere_is_whole(odd_mariadb: str, monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    steps = np.arange(300)
    _log_to_mariadb(odd_mariadb, {"x": (steps, steps + 0.125, START_S * 1000 + steps)})
    whole = sum(len(f"{s},{s + 0.125:g},{START_S * 1000 + s:.0f}\n") for s in range(300))
    settings = (f"SET SESSION group_concat_max_len = {whole - short}", *servers._MYSQL_SESSION_SETTINGS[1:])
    monkeypatch.setattr(servers, "_MYSQL_SESSION_SETTINGS", settings)
    found = read_experiment("bits", tracking_uri=odd_mariadb)
    assert found.points["x"].values.tolist() == (steps + 0.125).tolist()


@pytest.mark.slow
def test_a_curve_of_a_million_points_comes_whole_out_of_mariadb(odd_mariadb: str) -> None:
    steps = np.arange(1_000_000)
    values = np.random.default_rng(0).normal(size=len(steps))
    _log_to_mariadb(odd_mariadb, {"x": (steps, values, START_S * 1000 + steps)})
    points = read_experiment("bits", tracking_uri=odd_mariadb).points["x"]
    np.testing.assert_array_equal(points.steps, steps)
    np.testing.assert_array_equal(points.values, values)


def test_names_that_differ_in_case_alone_are_two_in_mariadb(odd_mariadb: str) -> None:
    from mlflow import MlflowClient

    ones = np.ones(2)
    curves = {name: (np.arange(2), i + ones, START_S * 1000 + np.arange(2)) for i, name in enumerate(("Loss", "loss"))}
    _log_to_mariadb(odd_mariadb, {**curves, "loss ": (np.arange(2), 9 * ones, START_S * 1000 + np.arange(2))})
    found = read_experiment("bits", tracking_uri=odd_mariadb)
    assert {name: set(p.values.tolist()) for name, p in found.points.items()} == {"Loss": {1.0}, "loss": {2.0}, "loss ": {9.0}}
    mlflow = MlflowClient(odd_mariadb)
    run = found.runs[0].id
    mlflow.log_param(run, "LR", "1")
    mlflow.log_param(found.runs[1].id, "lr", "1")
    for key in ("Advisor.mine", "MLflow.mine"):
        mlflow.set_tag(run, key, "kept")
    filtered = read_experiment("bits", tracking_uri=odd_mariadb, filter="params.lr = '1'")
    assert [r.id for r in filtered.runs] == [found.runs[1].id]
    tags = read_experiment("bits", tracking_uri=odd_mariadb).runs[0].tags
    assert (tags["Advisor.mine"], tags["MLflow.mine"]) == ("kept", "kept")
