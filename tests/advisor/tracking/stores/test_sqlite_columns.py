"""Reading by columns gives what reading by rows gives, also if it fails in the middle."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
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
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs read after each block by columns, of which there is one for each run but the first."""
    monkeypatch.setenv(cache.SETTING, "off")
    monkeypatch.setattr(sqlite, "_MIN_POINTS_BY_COLUMNS", 0)
    monkeypatch.setattr(sqlite, "_POINTS_AT_ONCE", 1)
    monkeypatch.setattr(database, "_FIRST_RUNS", 1)
    read_blocks = sqlite_columns.read_blocks
    seen: list[int] = []

    def spy(*args: object) -> Iterator[tuple[int, database.Block]]:
        for done, block in read_blocks(*args):
            seen.append(done)
            yield done, block

    monkeypatch.setattr(sqlite_columns, "read_blocks", spy)
    return seen


@pytest.fixture
def store(odd_database: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(odd_database, tmp_path / "mlflow.db"))


def by_rows(monkeypatch: pytest.MonkeyPatch, store: Path) -> Experiment:
    monkeypatch.setattr(sqlite_columns, "is_installed", lambda: False)
    return read_experiment("odd", tracking_uri=str(store))


def test_columns_equal_rows_bit_for_bit(blocks: list[int], store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(store)) as connection:
        for table in ("metrics", "latest_metrics"):
            connection.execute(f"UPDATE {table} SET key = 'ü' || char(1) || '\"' WHERE key = 'untimed'")
        connection.commit()
    before = store.read_bytes()
    by_columns = read_experiment("odd", tracking_uri=str(store))
    assert blocks == [2, 3, 4]
    assert 'ü\1"' in by_columns.points
    rows = by_rows(monkeypatch, store)
    same(by_columns, rows)
    for metric, points in rows.points.items():
        values = by_columns.points[metric].values
        np.testing.assert_array_equal(values.view(np.int64), points.values.view(np.int64), err_msg=metric)
    assert [p.name for p in store.parent.iterdir()] == ["mlflow.db"]
    assert store.read_bytes() == before


def test_rows_replace_columns_of_another_type(blocks: list[int], store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE metrics SET timestamp = timestamp + 0.5 WHERE key = 'val/loss'")
        connection.commit()
    experiment = read_experiment("odd", tracking_uri=str(store))
    assert len(blocks) < 3
    same(experiment, by_rows(monkeypatch, store))


@pytest.mark.parametrize("child", ["import adbc_driver_of_another_name", "import os; os._exit(9)", "print('no Arrow')"])
def test_rows_replace_a_child_that_fails(
    blocks: list[int], store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, child: str
) -> None:
    script = tmp_path / "child.py"
    script.write_text(child)
    monkeypatch.setattr(sqlite_columns, "_CHILD", script)
    experiment = read_experiment("odd", tracking_uri=str(store))
    assert blocks == []
    same(experiment, by_rows(monkeypatch, store))


def test_rows_go_on_after_a_child_that_was_killed(
    blocks: list[int], store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    text = sqlite_columns._CHILD.read_text()
    script.write_text(
        text.replace(
            "            writer.write_batch(batch)", "            writer.write_batch(batch)\n            1 / 0"
        )
    )
    monkeypatch.setattr(sqlite_columns, "_CHILD", script)
    experiment = read_experiment("odd", tracking_uri=str(store))
    assert blocks == [2]
    same(experiment, by_rows(monkeypatch, store))


def test_small_experiments_are_read_by_rows(
    blocks: list[int], odd_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_MIN_POINTS_BY_COLUMNS", 1000)
    read_experiment("odd", tracking_uri=str(odd_database))
    assert blocks == []
