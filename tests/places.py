"""Folders with a store that tests reuse, so that they also reuse the shipper process, whose start takes seconds."""

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

TIMEOUT_S = 10.0


class Places:
    """Provides each test with a folder that contains only an empty store, `mlflow.db`.

    The folder is reused if all processes of the last test are idle and its store is still the same file. Otherwise the next test
    gets a new folder, so that processes of an earlier test cannot write into its store.
    """

    def __init__(self, folders: pytest.TempPathFactory, empty_store: Path) -> None:
        self._folders, self._empty_store = folders, empty_store
        self._place: Path | None = None
        self._of_earlier_tests: set[int] = set()

    def take(self) -> Path:
        """Return the folder."""
        self._of_earlier_tests = _working_shippers()
        if self._place is None:
            self._place = self._folders.mktemp("place")
            shutil.copy(self._empty_store, self._place / "mlflow.db")
            self._store = (self._place / "mlflow.db").open("rb")  # while it is open, no other file can get its inode
        return self._place

    def give_back(self) -> None:
        """Empty the folder for the next test, or abandon it if it is still in use."""
        assert self._place is not None
        if not (self._is_same_store() and self._is_at_rest() and self._is_emptied()):
            self._place = None
            return
        with closing(sqlite3.connect(self._empty_store)) as empty, closing(sqlite3.connect(self._database)) as store:
            empty.backup(store)  # a transaction, so that open connections notice it

    @property
    def _database(self) -> Path:
        assert self._place is not None
        return self._place / "mlflow.db"

    def _is_same_store(self) -> bool:
        return self._database.is_file() and os.path.samestat(self._database.stat(), os.fstat(self._store.fileno()))

    def _is_at_rest(self) -> bool:
        """Whether all shippers of this test are idle and nothing is left to deliver."""
        deadline = time.monotonic() + TIMEOUT_S
        # Shippers of earlier tests, whose folders were abandoned, may wait for their unreachable servers for hours.
        while _working_shippers() - self._of_earlier_tests:
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


def _working_shippers() -> set[int]:
    """Return the process ids of this process's shippers that are still working or exiting."""
    idle = {one._process.pid for one in shipper_process._idle_shippers}
    return {child.pid for child in psutil.Process().children() if child.pid not in idle and _is_shipper(child)}


def _is_shipper(child: psutil.Process) -> bool:
    try:
        return any("advisor_logging.shipper" in word for word in child.cmdline())  # empty after its exit
    except psutil.Error:
        return False
