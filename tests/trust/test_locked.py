"""A database that another program has locked: waited for a while, and then said in one line."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import Advisor, Refused, contents
from kill_base import write_source
from kill_run import STUDY
from kill_victims import Sync


@contextmanager
def locked(store: Path, seconds: float = 1e9) -> Iterator[None]:
    """Within it, or for so many seconds of it, somebody writes to the database."""
    over = threading.Event()
    begun = threading.Event()

    def write() -> None:
        database = sqlite3.connect(store, isolation_level=None)
        database.execute("BEGIN EXCLUSIVE")
        begun.set()
        over.wait(min(seconds, 1000))
        database.execute("ROLLBACK")
        database.close()

    thread = threading.Thread(target=write)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_for_a_while(store: Path, tmp_path: Path, advisor: Advisor) -> None:
    source = write_source(tmp_path / "source", 10, 2)
    for words in (["analyze", "e"], ["import", "csv", source, "--experiment", "more"]):
        with locked(store, seconds=0.5):
            status, _, err = advisor(*words, "--tracking-uri", store)
        assert (status, err) == (0, "")


def test_for_ever(store: Path, tmp_path: Path, advisor: Advisor, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.tracking.stores.sqlite._TIMEOUT_S", 0.2)
    before = store.read_bytes()
    source = write_source(tmp_path / "source", 10, 2)
    (tmp_path / "study.yaml").write_text(STUDY)
    uri = f"sqlite:///{store}?timeout=0.2"  # for SQLAlchemy, which waits for 5 seconds otherwise
    with locked(store):
        assert "was locked by another program for 0.2 s" in refused("analyze", "e", "--tracking-uri", store)
        assert "was locked by another program" in refused("import", "csv", source, "--tracking-uri", store)
        assert "database is locked" in refused("run", "study.yaml", "--tracking-uri", uri, "--", "true", "{lr}")
    assert store.read_bytes() == before
    assert not (tmp_path / "advisor-report").exists()


@pytest.mark.slow
def test_what_is_to_be_delivered_stays(store: Path, tmp_path: Path, advisor: Advisor) -> None:
    left = Sync(tmp_path / "spools", 300).folder / "left"
    shutil.rmtree(left / "second")
    before = contents(left)
    with locked(store):
        status, _, err = advisor("sync", left, "--quiet", "--tracking-uri", f"sqlite:///{store}")
    assert (status, err.count("\n")) == (1, 1)
    assert "database is locked" in err
    assert before.items() <= contents(left).items()
    assert advisor("sync", left, "--quiet", "--tracking-uri", f"sqlite:///{store}")[0] == 0
    assert not contents(left)
