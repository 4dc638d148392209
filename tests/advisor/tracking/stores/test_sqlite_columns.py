"""The faster driver of SQLite gives what Python's own gives, and where it cannot, nobody notices."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from experiments import same

from advisor.tracking.points import cache
from advisor.tracking.runs import Experiment
from advisor.tracking.stores import database, sqlite, sqlite_columns
from advisor.tracking.stores.reading import read_experiment

pytest.importorskip("adbc_driver_sqlite")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the first run of each block that the faster driver gave, which it is asked for every run but the first."""
    monkeypatch.setenv(cache.SETTING, "off")
    monkeypatch.setattr(sqlite, "_MANY", 0)
    monkeypatch.setattr(database, "_FIRST_RUNS", 1)
    given: list[int] = []
    block = sqlite_columns.Reader.block

    def spied(self: sqlite_columns.Reader, start: int, ids: list[str]) -> database.Block:
        found = block(self, start, ids)
        given.append(start)
        return found

    monkeypatch.setattr(sqlite_columns.Reader, "block", spied)
    return given


def by_rows(monkeypatch: pytest.MonkeyPatch, store: Path) -> Experiment:
    monkeypatch.setattr(sqlite, "_MANY", 10**9)
    return read_experiment("odd", tracking_uri=str(store), alone=True)


def test_columns_are_those_of_rows(asked: list[int], odd_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_columns = read_experiment("odd", tracking_uri=str(odd_database), alone=True)
    assert asked[0] == 1
    slow = by_rows(monkeypatch, odd_database)
    same(by_columns, slow)
    for metric, points in slow.points.items():  # bit for bit, -0.0 and all
        mine = by_columns.points[metric]
        np.testing.assert_array_equal(mine.values.view(np.int64), points.values.view(np.int64), err_msg=metric)


def test_names_that_json_may_not_keep_are_read_by_rows(
    asked: list[int], odd_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Path(shutil.copy(odd_database, tmp_path / "mlflow.db"))
    with closing(sqlite3.connect(store)) as connection:
        for table in ("metrics", "latest_metrics"):
            connection.execute(f"UPDATE {table} SET key = 'a' || char(1) WHERE key = 'val/loss'")
        connection.commit()
    found = read_experiment("odd", tracking_uri=str(store), alone=True)
    assert "a\1" in found.points
    assert asked == []
    same(found, by_rows(monkeypatch, store))


def test_columns_that_hold_other_things_are_read_by_rows(
    asked: list[int], odd_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Path(shutil.copy(odd_database, tmp_path / "mlflow.db"))
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE metrics SET timestamp = timestamp + 0.5")
        connection.commit()
    found = read_experiment("odd", tracking_uri=str(store), alone=True)
    assert asked == []
    same(found, by_rows(monkeypatch, store))


@pytest.mark.parametrize("missing", ["adbc_driver_sqlite", "pyarrow"])
def test_without_it_rows_will_do(
    asked: list[int], odd_database: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    found = read_experiment("odd", tracking_uri=str(odd_database), alone=True)
    assert asked == []
    same(found, by_rows(monkeypatch, odd_database))


def test_where_it_fails_in_the_middle_rows_go_on(
    asked: list[int], odd_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = sqlite_columns._batches

    def broken(statement):
        yield from batches(statement)
        raise OSError("disk I/O error")

    monkeypatch.setattr(sqlite_columns, "_batches", broken)
    found = read_experiment("odd", tracking_uri=str(odd_database), alone=True)
    assert asked == []
    same(found, by_rows(monkeypatch, odd_database))


def test_it_writes_nothing_and_closes_what_it_opens(asked: list[int], odd_database: Path, tmp_path: Path) -> None:
    store = Path(shutil.copy(odd_database, tmp_path / "mlflow.db"))
    before = store.read_bytes()
    read_experiment("odd", tracking_uri=str(store), alone=True)
    assert asked
    assert [p.name for p in tmp_path.iterdir()] == ["mlflow.db"]
    assert store.read_bytes() == before
    if Path("/proc/self/fd").is_dir():
        links = [os.readlink(p) for p in Path("/proc/self/fd").iterdir() if p.is_symlink()]
        assert links.count(str(store)) <= 1  # its header, which must stay open


def test_where_the_program_may_have_the_store_open_no_second_library_does(asked: list[int], odd_database: Path) -> None:
    read_experiment("odd", tracking_uri=str(odd_database))
    assert asked == []
