from __future__ import annotations

import importlib.util
import math
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_servers import FaultyProxy

from advisor.errors import AdvisorError
from advisor.tracking import client, mysql, postgres
from advisor.tracking.location import Location, locate
from advisor.tracking.runs import Experiment
from advisor.tracking.sqlite import check_writable
from advisor.tracking.store import list_experiments, read_experiment

START_S = 1_600_000_000.0


def curve(experiment: Experiment, run: str, metric: str) -> tuple[list[int], list[float], list[float]]:
    index = [r.name for r in experiment.runs].index(run)
    points = experiment.points[metric]
    mine = points.runs == index
    return points.steps[mine].tolist(), points.values[mine].tolist(), points.times[mine].tolist()


def same(a: Experiment, b: Experiment, *, ids: bool = True) -> None:
    """Equal in every part; without `ids`, where two stores gave the runs different ids and their users other names."""

    def tags(run_tags):
        return {k: v for k, v in run_tags.items() if ids or k not in ("mlflow.parentRunId", "mlflow.user")}

    assert a.name == b.name
    assert a.tags == b.tags
    assert len(a.runs) == len(b.runs)
    for x, y in zip(a.runs, b.runs, strict=True):
        assert (x.name, x.status, x.params, x.started, x.ended) == (y.name, y.status, y.params, y.started, y.ended)
        assert tags(x.tags) == tags(y.tags)
        assert not ids or x.id == y.id
    assert list(a.points) == list(b.points)
    for metric, points in a.points.items():
        for column in ("runs", "steps", "values", "times"):
            np.testing.assert_array_equal(getattr(points, column), getattr(b.points[metric], column), err_msg=metric)


def refused(message: str, *args: object, **kwargs: object) -> str:
    with pytest.raises(AdvisorError, match=message) as caught:
        read_experiment(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what is read ---------------------------------------------------------------------------------------------------------------


def test_runs_come_with_status_times_params_and_tags(odd_database: Path) -> None:
    runs = read_experiment("odd", tracking_uri=f"sqlite:///{odd_database}").runs
    assert [r.name for r in runs] == ["sweep", "first", "resumed", "tagged"]  # the deleted one is left out
    assert [r.status for r in runs] == ["FINISHED", "FINISHED", "RUNNING", "KILLED"]
    assert (runs[1].started, runs[1].ended) == (START_S + 1, START_S + 9)
    assert runs[2].ended is None
    assert runs[1].params == {"lr": "1e-3", "name": "ünï code", "empty": ""}
    assert runs[1].tags["mlflow.parentRunId"] == runs[0].id
    assert runs[1].tags["mlflow.note.content"] == "a note"
    assert runs[1].tags["team"] == "vision"


def test_points_are_exact_and_raw(odd_database: Path) -> None:
    experiment = read_experiment("odd", tracking_uri=str(odd_database))
    steps, values, times = curve(experiment, "first", "val/loss")
    assert steps == [0, 2, 4, 6, 8, 10, 12]
    np.testing.assert_array_equal(values, [1.5, math.nan, math.inf, -math.inf, 0.1 + 0.2, 5e-324, -0.25])
    np.testing.assert_allclose(np.array(times) - START_S, 1 + np.arange(7) / 100, atol=1e-6)
    steps, values, _ = curve(experiment, "resumed", "val/loss")
    assert steps == [2, 4, 4, 1, 7]  # in the order of time: steps repeat and go back
    assert values == [0.8, 0.5, 0.4, 0.9, 0.3]


def test_a_point_without_a_time_has_none(odd_database: Path) -> None:
    steps, values, times = curve(read_experiment("odd", tracking_uri=str(odd_database)), "resumed", "untimed")
    assert (steps, values) == ([0, 5], [3.0, 2.0])
    assert np.isnan(times).all()


def test_long_and_many_tags_are_capped_but_ours_are_kept(odd_database: Path) -> None:
    experiment = read_experiment("odd", tracking_uri=str(odd_database))
    tags = experiment.runs[3].tags
    assert len([k for k in tags if k.startswith("tag")]) == 300
    assert len(tags["tag000"]) == 5000
    assert tags["advisor.seed"] == "7"
    assert "mlflow.log-model.history" not in tags
    assert experiment.tags["advisor.objective"] == "val/loss"
    assert len(experiment.tags["note"]) == 5000


def test_system_metrics_are_read_only_when_asked(odd_database: Path) -> None:
    assert "system/cpu" not in read_experiment("odd", tracking_uri=str(odd_database)).points
    assert "system/cpu" in read_experiment("odd", tracking_uri=str(odd_database), system_metrics=True).points


def test_an_experiment_is_found_by_id_and_progress_is_told(odd_database: Path) -> None:
    told = []
    by_name = read_experiment("odd", tracking_uri=str(odd_database), on_progress=lambda *p: told.append(p))
    same(by_name, read_experiment("1", tracking_uri=str(odd_database)))
    assert told[-1] == (4, 4)


# --- all ways give the same -----------------------------------------------------------------------------------------------------


def through_client(uri: str, filter: str | None = None) -> Experiment:
    return client.read(
        Location("other", uri), "odd", filter=filter, system_metrics=False, on_progress=lambda done, of: None
    )


def test_sql_reads_what_the_client_reads(odd_database: Path) -> None:
    uri = f"sqlite:///{odd_database}"
    same(read_experiment("odd", tracking_uri=uri), through_client(uri))


def test_postgresql_gives_the_same_by_sql_and_through_the_client(odd_database: Path, odd_postgres: str) -> None:
    pytest.importorskip("psycopg")
    by_sql = read_experiment("odd", tracking_uri=odd_postgres)
    assert postgres.is_possible(locate(odd_postgres))
    same(by_sql, through_client(odd_postgres))
    same(by_sql, read_experiment("odd", tracking_uri=str(odd_database)), ids=False)
    some = read_experiment("odd", tracking_uri=odd_postgres, filter="params.lr = '1e-3'", system_metrics=True)
    assert [run.name for run in some.runs] == ["first"]
    assert list_experiments(odd_postgres) == list_experiments(str(odd_database))


def test_a_postgresql_that_cannot_be_read_is_one_line(odd_postgres: str) -> None:
    pytest.importorskip("psycopg")
    server, _, _ = odd_postgres.rpartition("/")
    assert "pa55word" not in refused("holds no MLflow store", "odd", tracking_uri=f"{server}/postgres")
    refused("cannot reach", "odd", tracking_uri=f"{server}/no_such_database")
    refused("has no experiment|no experiment", "none", tracking_uri=odd_postgres)
    with pytest.raises(AdvisorError, match="read-only"), postgres.connect(locate(odd_postgres)) as connection:
        connection.execute("DELETE FROM metrics")
    for sql, said in (
        ("SET LOCAL statement_timeout = 20; SELECT pg_sleep(20)", "^cannot read .*: canceling statement due to"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "^cannot reach .* is the database running"),
    ):
        with pytest.raises(AdvisorError, match=said) as caught, postgres.connect(locate(odd_postgres)) as connection:
            connection.execute(sql)
        assert "\n" not in str(caught.value)


def test_mariadb_gives_the_same_by_sql_and_through_the_client(odd_database: Path, odd_mariadb: str) -> None:
    by_sql = read_experiment("odd", tracking_uri=odd_mariadb)
    assert mysql.is_possible(locate(odd_mariadb))
    same(by_sql, through_client(odd_mariadb))
    same(by_sql, read_experiment("odd", tracking_uri=str(odd_database)), ids=False)
    some = read_experiment("odd", tracking_uri=odd_mariadb, filter="params.lr = '1e-3'", system_metrics=True)
    assert [run.name for run in some.runs] == ["first"]
    assert list_experiments(odd_mariadb) == list_experiments(str(odd_database))
    if importlib.util.find_spec("MySQLdb") is not None:
        same(by_sql, read_experiment("odd", tracking_uri=odd_mariadb.replace("+pymysql", "")))


def test_a_mysql_without_a_known_driver_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pymysql")
    assert mysql.is_possible(Location("database", "mysql+pymysql://host/name"))
    assert not mysql.is_possible(Location("database", "mysql+aiomysql://host/name"))
    assert not mysql.is_possible(Location("database", "postgresql://host/name"))
    refused("no address", "odd", tracking_uri="mysql+nonsense://mlflow:pa55word@host/name")
    monkeypatch.setitem(sys.modules, "pymysql", None)
    assert not mysql.is_possible(Location("database", "mysql+pymysql://host/name"))


def test_reading_mariadb_sees_one_state(odd_mariadb: str) -> None:
    count = "SELECT count(*) FROM tags"
    with mysql.connect(locate(odd_mariadb)) as connection, mariadb(odd_mariadb) as execute:
        execute("INSERT INTO tags SELECT CONCAT('new ', UUID()), 'x', run_uuid FROM runs LIMIT 1")
        before = mysql.query(connection, count)[0][0]
        execute("DELETE FROM tags WHERE `key` LIKE 'new %%'")
        assert mysql.query(connection, count)[0][0] == before
    with mysql.connect(locate(odd_mariadb)) as connection:
        assert mysql.query(connection, count)[0][0] == before


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
        refused("no address", "odd", tracking_uri="mysql+pymysql://mlflow:pa55word@127.0.0.1:port/mlflow"),
        refused("has no experiment|no experiment", "none", tracking_uri=odd_mariadb),
    ]
    assert "pa55word" not in " ".join(said)
    for sql, message in (
        ("DELETE FROM metrics", "^cannot read .*READ ONLY"),
        ("CREATE TABLE t (i int)", "^cannot read .*READ ONLY"),
        ("SET STATEMENT max_statement_time = 0.02 FOR SELECT sleep(20)", "^cannot read .*max_statement_time"),
        ("KILL CONNECTION_ID()", "^cannot (reach|read) "),
    ):
        with pytest.raises(AdvisorError, match=message) as caught, mysql.connect(locate(odd_mariadb)) as connection:
            connection.exec_driver_sql(sql)
        assert "\n" not in str(caught.value)
    with pytest.raises(AdvisorError, match="READ ONLY"), mysql.connect(locate(odd_mariadb)) as connection:
        [connection.exec_driver_sql(sql) for sql in ("COMMIT", "DELETE FROM metrics")]


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
    settings = ("SET SESSION group_concat_max_len = 65536", *mysql._SETTINGS[1:])
    monkeypatch.setattr(mysql, "_SETTINGS", settings)
    assert _bits(read_experiment("bits", tracking_uri=odd_mariadb), "x") == expected


@pytest.mark.parametrize("short", range(-3, 4))
def test_a_curve_cut_anywhere_is_whole(odd_mariadb: str, monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    steps = np.arange(300)
    _log_to_mariadb(odd_mariadb, {"x": (steps, steps + 0.125, START_S * 1000 + steps)})
    whole = sum(len(f"{s},{s + 0.125:g},{START_S * 1000 + s:.0f}\n") for s in range(300))
    monkeypatch.setattr(
        mysql, "_SETTINGS", (f"SET SESSION group_concat_max_len = {whole - short}", *mysql._SETTINGS[1:])
    )
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
    assert {name: set(p.values.tolist()) for name, p in found.points.items()} == {
        "Loss": {1.0},
        "loss": {2.0},
        "loss ": {9.0},
    }
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


class _Portal(FaultyProxy):
    """A proxy that answers the call for many histories with a page of its own."""

    pages = 0

    def _forward(self, client, body):
        if "get-history-bulk" not in client.path:
            return super()._forward(client, body)
        self.pages += 1
        return 200, [("Content-Type", "text/html")], b"<html>Please sign in</html>"


def test_a_server_gives_the_same(odd_database: Path, serve: Callable[[Path], Any]) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    database, address = serve(odd_database)
    long = MlflowClient(database)
    id = long.create_experiment("long")
    for start in (0, 5000):
        run = long.create_run(id, start_time=start + 1).info.run_id
        for n in range(0, 3000 if start else 1500, 500):
            values = [Metric("loss", 0.5 * s, start + s, start + s) for s in range(n, n + 500)]
            long.log_batch(run, metrics=[*values, Metric("few", n, start + n, n)])
    by_sql = read_experiment("long", tracking_uri=database)
    assert len(by_sql.points["loss"].steps) == 4500  # more than a server's charts are given
    same(by_sql, read_experiment("long", tracking_uri=address))
    proxy = _Portal(int(address.rpartition(":")[2]))
    try:
        same(by_sql, read_experiment("long", tracking_uri=proxy.uri))
    finally:
        proxy.close()
    assert proxy.pages > 0
    long.delete_experiment(id)

    by_sql = read_experiment("odd", tracking_uri=database)
    same(by_sql, read_experiment("odd", tracking_uri=address))
    assert list_experiments(address) == list_experiments(database) == ("Default", "odd", "other study")
    assert "there are: odd, Default, other study" in refused("no experiment named 'Odds'", "Odds", tracking_uri=address)
    refused("was deleted", "gone", tracking_uri=address)
    refused("is not one that MLflow understands", "odd", tracking_uri=address, filter="lr >")


def test_a_server_is_asked_for_many_histories_at_once(
    odd_database: Path, serve: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delattr(MlflowClient, "get_metric_history")  # one history at a time
    address = serve(odd_database).address
    told: list[tuple[int, int]] = []
    read = read_experiment("odd", tracking_uri=address, on_progress=lambda *p: told.append(p))
    same(read, read_experiment("odd", tracking_uri=str(odd_database)))
    assert told == sorted(told)
    assert told[-1] == (4, 4)


def test_a_folder_of_files_gives_the_same(odd_database: Path, odd_files: Path) -> None:
    by_sql = read_experiment("odd", tracking_uri=str(odd_database))
    for uri in (str(odd_files), odd_files.as_uri()):
        same(by_sql, read_experiment("odd", tracking_uri=uri), ids=False)


@pytest.mark.parametrize(
    "filter",
    [
        "params.lr = '0.1'",
        "metrics.`val/loss` < 0.5",
        "metrics.`val/loss` > 0",
        "tags.team LIKE 'vis%'",
        "attributes.status = 'KILLED'",
        f"attributes.start_time > {int(START_S * 1000) + 1500}",
        "run_name ILIKE 'FIRST' and params.lr != '7'",
        "tags.`mlflow.log-model.history` = 'long'",
    ],
)
def test_a_filter_lets_the_same_runs_pass_as_mlflow(odd_database: Path, filter: str) -> None:
    uri = f"sqlite:///{odd_database}"
    by_sql = read_experiment("odd", tracking_uri=uri, filter=filter)
    assert 0 < len(by_sql.runs) < 4
    same(by_sql, through_client(uri, filter))


# --- errors ---------------------------------------------------------------------------------------------------------------------


def test_unknown_deleted_and_empty_experiments(odd_database: Path) -> None:
    uri = str(odd_database)
    assert refused("no experiment named", "othr studi", tracking_uri=uri).endswith(
        "there are: other study, Default, odd"
    )
    refused("was deleted; restore it with: mlflow experiments restore -x 3", "gone", tracking_uri=uri)
    refused("has no runs; log some trials first", "other study", tracking_uri=uri)
    refused("no run of .* matches --filter", "odd", tracking_uri=uri, filter="params.lr = 'x'")
    refused("is not one that MLflow understands", "odd", tracking_uri=uri, filter="lr >")


@pytest.mark.parametrize("filter", ["params.lr > 0.01", "params.lr > '0.01'", "metrics.x > 1 and parameters.lr < 1"])
def test_parameters_are_no_numbers_to_a_filter(odd_database: Path, odd_files: Path, filter: str) -> None:
    for uri in (odd_database, odd_files):
        refused("parameters are compared as text", "odd", tracking_uri=str(uri), filter=filter)


def test_a_bad_filter_without_parameters_is_told_nothing_of_them(odd_database: Path) -> None:
    message = refused("not one that MLflow understands", "odd", tracking_uri=str(odd_database), filter="lr >")
    assert "parameters" not in message


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("localhost:5000", "'localhost:5000' is no tracking URI; did you mean http://localhost:5000[?]$"),
        ("10.0.0.1:80/base", "did you mean http://10.0.0.1:80/base[?]$"),
        ("ftp://x", "^'ftp://x' is no tracking URI; one is sqlite:///file.db, http[(]s[)]://"),
        ("me:hunter2@host:5000", "did you mean http://host:5000[?]$"),
        ("ftp://me:hunter2@x", "ftp://[*]{3}@x"),
    ],
)
def test_what_is_no_tracking_uri_is_said_with_what_is(uri: str, message: str) -> None:
    assert "hunter2" not in refused(message, "x", tracking_uri=uri)


def test_mlflows_managed_stores_are_left_to_mlflow() -> None:
    assert {locate(uri).kind for uri in ("databricks", "databricks://profile", "uc://x")} == {"other"}


def test_files_that_are_no_store(tmp_path: Path) -> None:
    empty, text, other = tmp_path / "empty.db", tmp_path / "text.db", tmp_path / "other.db"
    empty.touch()
    text.write_text("hello " * 100)
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    refused("is empty", "x", tracking_uri=str(empty))
    refused("is no SQLite database", "x", tracking_uri=str(text))
    refused("no MLflow store", "x", tracking_uri=str(other))
    refused("no MLflow store at", "x", tracking_uri=str(tmp_path / "absent.db"))
    refused("no MLflow store at", "x", tracking_uri=f"file:{tmp_path}/absent")
    refused("write sqlite:///relative.db", "x", tracking_uri="sqlite://")
    refused("names no database file", "x", tracking_uri="sqlite:///:memory:")
    assert {p.name for p in tmp_path.iterdir()} == {"empty.db", "text.db", "other.db"}


def test_schemas_of_other_versions(odd_database: Path, tmp_path: Path) -> None:
    newer, older = tmp_path / "newer.db", tmp_path / "older.db"
    for path, change in (
        (newer, "UPDATE alembic_version SET version_num = 'ffffffffffff'"),
        (older, "ALTER TABLE runs DROP COLUMN name"),
    ):
        shutil.copy(odd_database, path)
        with sqlite3.connect(path) as connection:
            connection.execute(change)
        connection.close()
    refused("newer MLflow .* pip install --upgrade", "odd", tracking_uri=str(newer))
    refused("mlflow db upgrade sqlite:///", "odd", tracking_uri=str(older))


def test_without_a_store_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    message = refused("no MLflow store found", "x")
    assert str(tmp_path) in message
    assert "--tracking-uri" in message
    assert list(tmp_path.iterdir()) == []


def test_the_default_store_is_mlflows(odd_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(odd_database.parent)
    assert len(read_experiment("odd").runs) == 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{odd_database}")
    assert len(read_experiment("odd").runs) == 4


def test_an_unreachable_server_is_said_soon_and_without_its_password() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        port = silent.getsockname()[1]
        began = time.monotonic()
        message = refused("cannot reach", "x", tracking_uri=f"http://me:hunter2@127.0.0.1:{port}")
        assert time.monotonic() - began < 12
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("http://me:hunter2@host/x", "http://***@host/x"),
        ("https://me:hunt@er2@host/x", "https://***@host/x"),
        ("postgresql+psycopg2://me:hunter2@host/db?password=hunter2", "postgresql+psycopg2://***@host/db?password=***"),
    ],
)
def test_credentials_are_masked(uri: str, shown: str) -> None:
    assert locate(uri).shown == shown


def test_a_locked_store_is_said_after_a_wait(
    odd_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from advisor.tracking import sqlite

    monkeypatch.setattr(sqlite, "_WAIT_S", 0.2)
    path = shutil.copy(odd_database, tmp_path / "mlflow.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    refused("was locked by another program for 0.2 s", "odd", tracking_uri=str(path))
    writer.close()


# --- reading leaves no trace ----------------------------------------------------------------------------------------------------


def trace(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("writable", [True, False])
def test_reading_a_database_changes_no_byte(odd_database: Path, tmp_path: Path, journal: str, writable: bool) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    path = shutil.copy(odd_database, folder / "mlflow.db")
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.close()
    before = trace(folder)
    if not writable:
        path.chmod(stat.S_IRUSR)
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert len(read_experiment("odd", tracking_uri=str(path), filter="params.lr = '0.1'").runs) == 1
        assert len(read_experiment("odd", tracking_uri=str(path)).runs) == 4
        assert trace(folder) == before
    finally:
        folder.chmod(stat.S_IRWXU)


def test_points_still_in_a_write_ahead_log_are_read(odd_database: Path, tmp_path: Path) -> None:
    path = shutil.copy(odd_database, tmp_path / "mlflow.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute("UPDATE params SET value = 'just written' WHERE key = 'name'")
    before = path.read_bytes()
    runs = read_experiment("odd", tracking_uri=str(path)).runs
    assert runs[1].params["name"] == "just written"
    assert path.read_bytes() == before
    writer.close()


CUT_OFF = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 10")
database.execute("BEGIN")
database.execute("UPDATE experiments SET name = 'half'")
database.execute(
    "CREATE TABLE half AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
    "SELECT hex(randomblob(200)) FROM n"
)
os._exit(9)
"""


def test_a_write_that_was_cut_off_is_taken_back_before_the_next_and_makes_no_other_file(
    empty_store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a ?b=c #d %41 é"
    folder.mkdir()
    path = Path(shutil.copy(empty_store, folder / "mlflow.db"))
    before = trace(folder)
    assert subprocess.run([sys.executable, "-c", CUT_OFF, path], check=False).returncode == 9
    assert (folder / "mlflow.db-journal").stat().st_size
    check_writable(Location("sqlite", path=path))
    assert trace(tmp_path) == {
        folder.name: b"",
        **{f"{folder.name}/{name}": content for name, content in before.items()},
    }


def test_reading_files_leaves_no_trace(odd_files: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(odd_files, tmp_path / "mlruns"))
    assert len(read_experiment("odd", tracking_uri=str(folder)).runs) == 4
    assert trace(folder) == trace(odd_files)


def test_a_writer_is_not_blocked_while_a_store_is_read(odd_database: Path, tmp_path: Path) -> None:
    path = shutil.copy(odd_database, tmp_path / "mlflow.db")
    writer = sqlite3.connect(path, timeout=0, isolation_level=None)
    written = []

    def write(done: int, of: int) -> None:
        writer.execute("UPDATE runs SET user_id = ?", (str(done),))  # raises at once where the reader holds a lock
        written.append(done)

    read_experiment("odd", tracking_uri=str(path), on_progress=write)
    assert written
    writer.close()


def test_reading_imports_no_mlflow_and_keeps_the_environment(odd_database: Path) -> None:
    script = (
        "import sys, os; from advisor.tracking.store import read_experiment; before = dict(os.environ);"
        f"read_experiment('odd', tracking_uri={str(odd_database)!r});"
        "assert 'mlflow' not in sys.modules and 'sqlalchemy' not in sys.modules;"
        f"read_experiment('odd', tracking_uri={str(odd_database)!r}, filter='metrics.untimed < 9');"
        "assert dict(os.environ) == before"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
