"""SQLite files: locks, schemas, write-ahead logs, and reading without a trace."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from experiments import refused, trace

from advisor.tracking.stores.location import StoreLocation
from advisor.tracking.stores.reading import read_experiment
from advisor.tracking.stores.sqlite import check_writable


@pytest.fixture
def store(odd_database: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(odd_database, tmp_path / "mlflow.db"))


def test_reading_releases_no_lock_of_this_process(store: Path) -> None:
    other = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"

    def blocked() -> bool:
        reported = subprocess.run([sys.executable, "-c", other, str(store)], capture_output=True, text=True, check=False)
        return "database is locked" in reported.stderr

    with closing(sqlite3.connect(store, isolation_level=None)) as writer:
        assert not blocked()
        writer.execute("BEGIN IMMEDIATE")
        assert blocked()
        read_experiment("odd", tracking_uri=str(store))
        assert blocked()


def test_files_that_are_no_store(tmp_path: Path) -> None:
    empty, header, text, other = (tmp_path / f"{name}.db" for name in ("empty", "header", "text", "other"))
    empty.touch()
    header.write_bytes(b"SQLite format 3\0")
    text.write_text("hello " * 100)
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    refused("is empty", "x", tracking_uri=str(empty))
    refused("is no SQLite database", "x", tracking_uri=str(text))
    refused("is damaged", "x", tracking_uri=str(header))
    refused("no MLflow store", "x", tracking_uri=str(other))
    refused("no MLflow store at", "x", tracking_uri=str(tmp_path / "absent.db"))
    refused("no MLflow store at", "x", tracking_uri=f"file:{tmp_path}/absent")
    refused("write sqlite:///relative.db", "x", tracking_uri="sqlite://")
    refused("does not name a database file", "x", tracking_uri="sqlite:///:memory:")
    assert {p.name for p in tmp_path.iterdir()} == {"empty.db", "header.db", "text.db", "other.db"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE alembic_version SET version_num = 'ffffffffffff'", "newer MLflow .* pip install --upgrade"),
        ("ALTER TABLE runs DROP COLUMN name", "mlflow db upgrade sqlite:///"),
    ],
)
def test_schemas_of_other_versions(store: Path, change: str, message: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(change)
    refused(message, "odd", tracking_uri=str(store))


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


def test_points_still_in_a_write_ahead_log_are_read(store: Path) -> None:
    writer = sqlite3.connect(store, isolation_level=None)
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute("UPDATE params SET value = 'just written' WHERE key = 'name'")
    before = store.read_bytes()
    runs = read_experiment("odd", tracking_uri=str(store)).runs
    assert runs[1].params["name"] == "just written"
    assert store.read_bytes() == before
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


def test_an_interrupted_write_is_rolled_back_before_the_next_one(empty_store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a ?b=c #d %41 é"
    folder.mkdir()
    path = Path(shutil.copy(empty_store, folder / "mlflow.db"))
    before = trace(folder)
    assert subprocess.run([sys.executable, "-c", CUT_OFF, path], check=False).returncode == 9
    assert (folder / "mlflow.db-journal").stat().st_size
    check_writable(StoreLocation("sqlite", path=path))
    assert trace(tmp_path) == {folder.name: b"", **{f"{folder.name}/{name}": content for name, content in before.items()}}


def test_a_writer_is_not_blocked_while_a_store_is_read(store: Path) -> None:
    writer = sqlite3.connect(store, timeout=0, isolation_level=None)
    writes = []

    def write(done: int, of: int) -> None:
        writer.execute("UPDATE runs SET user_id = ?", (str(done),))  # raises at once where the reader holds a lock
        writes.append(done)

    read_experiment("odd", tracking_uri=str(store), on_progress=write)
    assert writes
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


_OF_ODD = "SELECT run_uuid FROM runs JOIN experiments USING (experiment_id) WHERE experiments.name = 'odd'"


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("metrics", column) for column in ("value", "step", "timestamp")),
        *(("latest_metrics", column) for column in ("step", "timestamp")),
        *(("runs", column) for column in ("start_time", "end_time")),
    ],
)
def test_a_blob_instead_of_a_number_is_one_clear_line(store: Path, table: str, column: str) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as writer:
        writer.execute(f"UPDATE {table} SET {column} = ? WHERE run_uuid IN ({_OF_ODD})", (b"\0" * 8,))
    refused(f"{column} of .* is a blob instead of a number; restore", "odd", tracking_uri=str(store))


def test_texts_that_are_blobs_or_in_another_encoding_are_read(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as writer:
        (run,) = writer.execute("SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active' LIMIT 1").fetchone()
        for key, value in (("as_blob", b"0.5"), ("latin", "gr\u00fcn".encode("latin-1"))):
            for table in ("params", "tags"):
                writer.execute(f"INSERT INTO {table} (run_uuid, key, value) VALUES (?, ?, ?)", (run, key, value))
        writer.execute("UPDATE runs SET name = x'41ff42'")
    runs = read_experiment("odd", tracking_uri=str(store)).runs
    assert {r.name for r in runs} == {"A\ufffdB"}
    (found,) = (r for r in runs if r.id == run)
    for texts in (found.params, found.tags):
        assert (texts["as_blob"], texts["latin"]) == ("0.5", "gr\ufffdn")
