from __future__ import annotations

import math
import os
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import START_S, refused, same, through_client
from fault_servers import FaultyProxy

from advisor.tracking.runs import Experiment
from advisor.tracking.stores.location import Location, locate
from advisor.tracking.stores.reading import list_experiments, read_experiment
from advisor.tracking.stores.sqlite import check_writable


def curve(experiment: Experiment, run: str, metric: str) -> tuple[list[int], list[float], list[float]]:
    index = [r.name for r in experiment.runs].index(run)
    points = experiment.points[metric]
    mine = points.runs == index
    return points.steps[mine].tolist(), points.values[mine].tolist(), points.times[mine].tolist()


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


def test_reading_leaves_this_process_the_locks_that_it_has(odd_database: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(odd_database, tmp_path / "mlflow.db"))
    other = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"

    def blocked() -> bool:
        told = subprocess.run([sys.executable, "-c", other, str(store)], capture_output=True, text=True, check=False)
        return "database is locked" in told.stderr

    with closing(sqlite3.connect(store, isolation_level=None)) as writer:
        assert not blocked()
        writer.execute("BEGIN IMMEDIATE")
        assert blocked()
        read_experiment("odd", tracking_uri=str(store))
        assert blocked()


# --- all ways give the same -----------------------------------------------------------------------------------------------------


def test_sql_reads_what_the_client_reads(odd_database: Path) -> None:
    uri = f"sqlite:///{odd_database}"
    same(read_experiment("odd", tracking_uri=uri), through_client(uri))


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
    assert locate(uri).display == shown


def test_a_locked_store_is_said_after_a_wait(
    odd_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from advisor.tracking.stores import sqlite

    monkeypatch.setattr(sqlite, "_TIMEOUT_S", 0.2)
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
        "import sys, os; from advisor.tracking.stores.reading import read_experiment; before = dict(os.environ);"
        f"read_experiment('odd', tracking_uri={str(odd_database)!r});"
        "assert 'mlflow' not in sys.modules and 'sqlalchemy' not in sys.modules;"
        f"read_experiment('odd', tracking_uri={str(odd_database)!r}, filter='metrics.untimed < 9');"
        "assert dict(os.environ) == before"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
