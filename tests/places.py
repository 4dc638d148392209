"""Folders with a store in them, so that a shipper that one test has started serves the next one, too: a start takes seconds."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from advisor_logging import shipper_process

PATIENCE_S = 2.0


class Places:
    """Gives one test after another a folder that is empty but for a new store, `mlflow.db`.

    It is the same folder as long as all that the last test started is at rest and its store is the same file; else a new one, so
    that nothing which is left of a test can write into another one's store.
    """

    def __init__(self, folders: pytest.TempPathFactory, empty_store: Path) -> None:
        self._folders, self._empty_store = folders, empty_store
        self._place: Path | None = None

    def take(self) -> Path:
        """An empty folder with an empty store."""
        if self._place is None:
            self._place = self._folders.mktemp("place")
            shutil.copy(self._empty_store, self._place / "mlflow.db")
            self._store = (self._place / "mlflow.db").open("rb")  # open, no other file can come by its identity
        return self._place

    def give_back(self) -> None:
        """Empty the folder for the next test, or leave it for good to those who still use it."""
        assert self._place is not None
        if not (self._is_same_store() and self._is_at_rest() and self._is_emptied()):
            self._place = None
            return
        with closing(sqlite3.connect(self._empty_store)) as empty, closing(sqlite3.connect(self._database)) as store:
            empty.backup(store)  # as a transaction, which others that have it open take notice of

    @property
    def _database(self) -> Path:
        assert self._place is not None
        return self._place / "mlflow.db"

    def _is_same_store(self) -> bool:
        return self._database.is_file() and os.path.samestat(self._database.stat(), os.fstat(self._store.fileno()))

    def _is_at_rest(self) -> bool:
        """Whether no shipper is left but those that wait for a next run, and nothing to deliver."""
        deadline = time.monotonic() + PATIENCE_S
        while _at_work():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        spool = self._database.with_name("spool")
        return not spool.is_dir() or not any(spool.iterdir())

    def _is_emptied(self) -> bool:
        assert self._place is not None
        for path in self._place.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path != self._database:
                path.unlink()
        return [path.name for path in self._place.iterdir()] == ["mlflow.db"]


def _at_work() -> bool:
    """Whether a shipper of this process is at work still, or dismissed and not gone yet."""
    idle = {one._process.pid for one in shipper_process._idle}
    return any(child.pid not in idle and _is_shipper(child) for child in psutil.Process().children())


def _is_shipper(child: psutil.Process) -> bool:
    try:
        return any("advisor_logging.shipper" in word for word in child.cmdline())  # of one that has ended it is empty
    except psutil.Error:
        return False
